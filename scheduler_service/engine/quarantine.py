"""Messages that came again: one at a time, counted, put aside in the end.

A message that ends its daemon is delivered to another one, and ends that.
What was delivered again is therefore counted in the store just before it is
worked on, alone; the count outlives the daemon.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store import suspects
from scheduler_service.store.connection import Store

LOG = logging.getLogger(__name__)


class Quarantine:
    """Says which messages may be worked on once more.

    :param limit: deliveries after which one may not; 0: all always may
    """

    def __init__(self, store: Store, limit: int, health: Health) -> None:
        self._store = store
        self._limit = limit
        self._health = health

    def begin(
        self, message_id: str, message: Mapping[str, Any], context: Any
    ) -> None:
        """Count that work on a message begins.

        Without the database nothing is counted: no work is done either.

        :raises RequestPutAside: it may not be worked on any more
        """
        self._health.count('requests_redelivered')
        method = str(message.get('method'))
        kept = {'context': context, 'method': method}
        try:
            text = msgspec.json.encode({**kept, 'args': message.get('args')})
        except (TypeError, ValueError, RecursionError):
            text = msgspec.json.encode({'method': method})
        one = suspects.Suspect(message_id, method, text.decode())
        try:
            may = self._store.write(
                lambda writer: suspects.begin(writer, one, self._limit)
            )
        except errors.StoreUnavailable:
            return
        if not may:
            self._health.count('requests_quarantined')
            LOG.error(
                'Message %s (%s) is put aside: it was delivered more than '
                '%d times and never done; see "scheduler-manage message"',
                message_id,
                method,
                self._limit,
            )
            raise errors.RequestPutAside(
                message_id=message_id, deliveries=self._limit
            )

    def end(self, message_id: str) -> None:
        """Note that a message was worked on to its end."""
        try:
            self._store.write(lambda writer: suspects.end(writer, message_id))
        except errors.StoreUnavailable:
            LOG.debug('Message %s stays counted', message_id)
