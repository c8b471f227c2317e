"""Redelivered messages: counted, and quarantined in the end.

A message whose processing ends the daemon is delivered to another daemon, and
would end that too. A redelivered message is therefore counted in the store
just before it is processed; the count outlives the daemon. Past a limit it is
quarantined: refused, and listed by ``scheduler-manage message list``.

The redelivery thread calls it. It keeps only the ids of messages whose count
is to be taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.records import quarantine

LOG = logging.getLogger(__name__)


class Quarantine:
    """Decides whether a redelivered message may be processed once more.

    :ivar limit: redeliveries after which it may not; 0: it always may
    """

    def __init__(self, store: Store, limit: int, health: Health) -> None:
        self._store = store
        self.limit = limit
        self._health = health
        self._cancelled: list[str] = []

    def begin(
        self, message_id: str, message: Mapping[str, Any], context: Any
    ) -> None:
        """Count that the processing of a redelivered message begins.

        While the database is unreachable nothing is counted, and nothing can
        be processed either.

        :raises RequestQuarantined: the message is quarantined
        """
        self._health.count('requests_redelivered')
        method = str(message.get('method'))
        text = _as_json(method, message.get('args'), context)
        cancelled = list(self._cancelled)

        def work(writer: Writer) -> bool:
            quarantine.uncount(writer, cancelled)
            return quarantine.count_delivery(
                writer, message_id, method, text, self.limit
            )

        try:
            allowed = self._store.write(work)
            del self._cancelled[: len(cancelled)]
        except errors.StoreUnavailable:
            return
        if not allowed:
            self._health.count('requests_quarantined')
            LOG.error(
                'Message %s (%s) is quarantined: it was redelivered more than '
                '%d times and never completed; see "scheduler-manage message '
                'show %s"',
                message_id,
                method,
                self.limit,
                message_id,
            )
            raise errors.RequestQuarantined(
                message_id=message_id, deliveries=self.limit
            )

    def cancel(self, message_id: str) -> None:
        """Take a count back: the message was returned, not processed.

        The database is unreachable then, so the next count does it.
        """
        self._cancelled.append(message_id)

    def end(self, message_id: str) -> None:
        """Record that the processing of a message was completed."""
        try:
            self._store.write(
                lambda writer: quarantine.clear(writer, message_id)
            )
        except errors.StoreUnavailable:
            LOG.debug('Message %s stays counted as redelivered', message_id)


def _as_json(method: str, args: Any, context: Any) -> str:
    """Return a message as JSON; its method alone where it is not encodable."""
    document = {'context': context, 'method': method, 'args': args}
    try:
        return msgspec.json.encode(document).decode()
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode({'method': method}).decode()
