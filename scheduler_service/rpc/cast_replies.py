"""Replies to casts, and notifications of results.

Used by the threads of the reply publisher, which may share the kept clients,
one for each destination.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import oslo_messaging

from scheduler_service import errors
from scheduler_service.rpc.context import ContextSerializer

LOG = logging.getLogger(__name__)
# Callers choose the names of destinations; most use one for each process.
_MOST_CLIENTS = 1000
ReplyCallback = Callable[[Any, errors.SchedulerError | None], None]


class CastReplySender:
    """Casts a reply to the destination of a message, and publishes it.

    Event types are ``scheduler.METHOD.end`` with the result and
    ``scheduler.METHOD.error`` with the error.

    :param notifier: None where no notification driver is configured
    """

    def __init__(self, transport: Any, notifier: Any = None) -> None:
        self._transport = transport
        self._notifier = notifier
        self._clients: dict[Any, Any] = {}

    def callback_for(
        self, ctxt: Any, method: str, args: Any, reply_to: Any
    ) -> ReplyCallback | None:
        """Return the callback for (result, error) of a message.

        :param args: of the message; the id of an invalid request is used too
        :param reply_to: the destination of the reply; None: no cast
        :return: None: neither cast nor notification
        """
        if reply_to is None and self._notifier is None:
            return None

        return _CastReply(self, ctxt, method, _request_id(args), reply_to)

    def cast(self, ctxt: Any, reply_to: Any, reply: dict[str, Any]) -> None:
        """Cast a reply to the destination of a message.

        :raises MessageUndeliverable: the queue is full and refuses the reply
        """
        target = oslo_messaging.Target(
            exchange=reply_to.exchange,
            topic=reply_to.topic,
            server=reply_to.server,
            version='1.0',
        )
        self._client_for(target).cast(ctxt, reply_to.method, **reply)

    def _client_for(self, target: oslo_messaging.Target) -> Any:
        key = target.exchange, target.topic, target.server
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= _MOST_CLIENTS:
                self._clients.clear()
            client = self._clients[key] = oslo_messaging.get_rpc_client(
                self._transport, target, serializer=ContextSerializer()
            )
        return client

    def notify(self, ctxt: Any, method: str, reply: dict[str, Any]) -> None:
        """Publish a reply as a notification, if any driver is configured."""
        if self._notifier is None:
            return
        failed = reply['error'] is not None
        publish = self._notifier.error if failed else self._notifier.info
        event = f'scheduler.{method}.{"error" if failed else "end"}'
        try:
            publish(ctxt, event, reply)
        except Exception as fault:
            # Only logged: after an error the cast would be sent again.
            LOG.warning('Notification %s was not published: %s', event, fault)


class _CastReply:
    """Casts and publishes the reply to a message, each once.

    :ivar destination: of the cast; None: no cast
    """

    def __init__(
        self,
        sender: CastReplySender,
        ctxt: Any,
        method: str,
        request_id: Any,
        reply_to: Any,
    ) -> None:
        self._sender = sender
        self._ctxt = ctxt
        self._method = method
        self._request_id = request_id
        self._reply_to = reply_to
        self.destination: str | None = None
        if reply_to is not None:
            names = (reply_to.exchange, reply_to.topic, reply_to.server)
            self.destination = '/'.join(name or '' for name in names)

    def __call__(
        self, result: Any, error: errors.SchedulerError | None
    ) -> None:
        """Cast and publish the result or the error of the message."""
        request_id = result['request_id'] if result else self._request_id
        reply = {
            'verb': self._method,
            'request_id': request_id,
            'result': result,
            'error': error.to_dict() if error else None,
        }
        if self._reply_to is not None:
            self._sender.cast(self._ctxt, self._reply_to, reply)
        self._sender.notify(self._ctxt, self._method, reply)


def _request_id(args: Any) -> Any:
    """Return the request id in a request or zone, if there is any."""
    for name in ('request', 'zone'):
        document = args.get(name) if isinstance(args, dict) else None
        if isinstance(document, dict) and document.get('request_id'):
            return document['request_id']
    return None


def new_notifier(conf: Any, transport: Any, publisher: str) -> Any:
    """Return a notifier, or None where no driver is configured."""
    notifier = oslo_messaging.Notifier(
        transport, publisher_id=publisher, serializer=ContextSerializer()
    )
    drivers = conf.oslo_messaging_notifications.driver
    return notifier if any(name != 'noop' for name in drivers) else None
