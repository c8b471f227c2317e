"""Replies to casts, and notifications of results.

Event types are ``scheduler.METHOD.end`` with the result and
``scheduler.METHOD.error`` with the error.
"""

from __future__ import annotations

import logging
from typing import Any

import oslo_messaging
from oslo_messaging import opts

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.rpc import transport
from scheduler_service.rpc.context import ContextSerializer

LOG = logging.getLogger(__name__)
_GROUP = 'oslo_messaging_notifications'


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
        self._request_id = _request_id(args)
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


def _request_id(args: Any) -> Any:
    """Return the request id in a request or zone, if there is any."""
    for name in ('request', 'zone'):
        document = args.get(name) if isinstance(args, dict) else None
        if isinstance(document, dict) and document.get('request_id'):
            return document['request_id']
    return None


def new_notifier(conf: Any, url: str | None, publisher: str) -> Any:
    """Return a notifier, or None where no driver is configured.

    :param url: of the bus, in place of the option's
    """
    options = dict(opts.list_opts())[_GROUP]
    conf.register_opts(options, group=_GROUP)
    if all(name == 'noop' for name in conf[_GROUP].driver):
        return None
    return oslo_messaging.Notifier(
        transport.for_notifications(conf, url),
        publisher_id=publisher,
        serializer=ContextSerializer(),
    )
