"""Answers to casts, and notifications of what was decided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import oslo_messaging

from scheduler_service import errors
from scheduler_service.rpc.context import ContextSerializer

LOG = logging.getLogger(__name__)
ReplyCallback = Callable[[Any, errors.SchedulerError | None], None]


class Answers:
    """Casts answers to whom a message names, and publishes them.

    Event types are ``scheduler.METHOD.end`` with the answer and
    ``scheduler.METHOD.error`` with the error.

    :param notifier: None where no notification driver is configured
    """

    def __init__(self, transport: Any, notifier: Any = None) -> None:
        self._transport = transport
        self._notifier = notifier
        self._clients: dict[Any, Any] = {}

    def teller(
        self, ctxt: Any, method: str, args: Any, reply_to: Any
    ) -> ReplyCallback | None:
        """Return what tells the outcome; None where nobody wants to know.

        :param args: of the message, to name the request where it failed
        """
        if reply_to is None and self._notifier is None:
            return None

        request_id = _request_id(args)

        def tell(answer: Any, error: errors.SchedulerError | None) -> None:
            told = {
                'verb': method,
                'request_id': answer['request_id'] if answer else request_id,
                'result': answer,
                'error': error.to_dict() if error else None,
            }
            if reply_to is not None:
                self._cast(ctxt, reply_to, told)
            self._notify(ctxt, method, told)

        return tell

    def _cast(self, ctxt: Any, reply_to: Any, told: dict[str, Any]) -> None:
        target = oslo_messaging.Target(
            exchange=reply_to.exchange,
            topic=reply_to.topic,
            server=reply_to.server,
            version='1.0',
        )
        key = reply_to.exchange, reply_to.topic, reply_to.server
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = oslo_messaging.get_rpc_client(
                self._transport, target, serializer=ContextSerializer()
            )
        client.cast(ctxt, reply_to.method, **told)

    def _notify(self, ctxt: Any, method: str, told: dict[str, Any]) -> None:
        if self._notifier is None:
            return
        event = 'error' if told['error'] else 'end'
        send = self._notifier.error if told['error'] else self._notifier.info
        try:
            send(ctxt, f'scheduler.{method}.{event}', told)
        except Exception as fault:
            # The answer itself has been sent; it must not be sent again.
            LOG.warning('A notification could not be published: %s', fault)


def _request_id(args: Any) -> Any:
    """Return the id that the asker gave its request or zone, if any."""
    for name in ('request', 'zone'):
        asked = args.get(name) if isinstance(args, dict) else None
        if isinstance(asked, dict) and asked.get('request_id'):
            return asked['request_id']
    return None


def new_notifier(conf: Any, transport: Any, publisher: str) -> Any:
    """Return a notifier, or None where no driver is configured."""
    notifier = oslo_messaging.Notifier(
        transport, publisher_id=publisher, serializer=ContextSerializer()
    )
    drivers = conf.oslo_messaging_notifications.driver
    return notifier if any(d != 'noop' for d in drivers) else None
