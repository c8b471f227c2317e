"""Replies to casts, and notifications of results.

Event types are ``scheduler.METHOD.end`` with the result and
``scheduler.METHOD.error`` with the error.
"""

from __future__ import annotations

import logging
from typing import Any

import oslo_messaging

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.rpc import transport
from scheduler_service.rpc.context import ContextSerializer

LOG = logging.getLogger(__name__)


class CastReply:
    """The outcome of a message, for its ``reply_to`` and as a notification.

    :param method: of the message
    :param args: of the message; the id of an invalid request is used too
    :param reply_to: the destination of the cast; None: no cast
    :param notifier: None: no notification
    """

    def __init__(
        self, ctxt: Any, method: str, args: Any, reply_to: Any, notifier: Any
    ) -> None:
        self.reply_to = reply_to
        self._ctxt = ctxt
        self._method = method
        self._request_id = document_of(args).get('request_id') or None
        self._notifier = notifier
        self._reply: dict[str, Any] = {}

    @property
    def notifies(self) -> bool:
        """Whether there is a notification."""
        return self._notifier is not None

    def set_outcome(
        self, result: Any, error: errors.SchedulerError | None
    ) -> None:
        """Set the result or the error.

        :param result: plain values; None with an error
        """
        self._reply = {
            'verb': self._method,
            'request_id': result['request_id'] if result else self._request_id,
            'result': result,
            'error': error.to_dict() if error else None,
        }

    def message(self) -> dict[str, Any]:
        """Return the message of the cast.

        :raises InvalidRequest: the context is no context
        """
        context = ContextSerializer().serialize_context(self._ctxt)
        method = self.reply_to.method
        content = {'method': method, 'args': self._reply, 'version': '1.0'}
        return wire.cast(context, content)

    def notify(self) -> None:
        """Publish the notification; a failure is only logged."""
        failed = self._reply['error'] is not None
        publish = self._notifier.error if failed else self._notifier.info
        event = f'scheduler.{self._method}.{"error" if failed else "end"}'
        try:
            publish(self._ctxt, event, self._reply)
        except Exception as fault:
            LOG.warning('Notification %s was not published: %s', event, fault)


def document_of(args: Any) -> dict[str, Any]:
    """Return the request or zone in arguments; empty: there is none."""
    for name in ('request', 'zone'):
        document = args.get(name) if isinstance(args, dict) else None
        if isinstance(document, dict):
            return document
    return {}


def new_notifier(conf: Any, url: str | None, publisher: str) -> Any:
    """Return a notifier, or None where no driver is configured.

    :param url: of the bus, in place of the option's
    """
    transport.register_notifications(conf)
    if not transport.publishes(conf):
        return None
    return oslo_messaging.Notifier(
        transport.for_notifications(conf, url),
        publisher_id=publisher,
        serializer=ContextSerializer(),
    )
