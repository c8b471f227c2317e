"""An in-process message bus, ``inproc://NAME``: no server, no polling.

The bus is for tests, demonstrations and single-node use. Messages are encoded
as JSON, as on a broker, and are lost when the process ends. Any thread may use
a broker; its condition guards the queues.
"""

from __future__ import annotations

import collections
import functools
import importlib
import json
import logging
import math
import queue
import threading
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import oslo_messaging
from oslo_messaging._drivers import base
from oslo_serialization import jsonutils

from scheduler_service import worker
from scheduler_service.bus import wire
from scheduler_service.bus.wire import Consumer, Publication, Request

LOG = logging.getLogger(__name__)


class Envelope(NamedTuple):
    """A message on its way.

    :ivar properties: as in AMQP
    :ivar redelivered: whether it was delivered before
    """

    body: bytes
    properties: Mapping[str, Any] = wire.PROPERTIES
    redelivered: bool = False


class Broker:
    """The queues of one bus, by name.

    :ivar replies: queues of waiting callers
    """

    def __init__(self) -> None:
        self.queues: dict[str, collections.deque[Envelope]] = {}
        self.fanouts: dict[str, set[str]] = {}
        self.replies: dict[str, queue.Queue[bytes]] = {}
        self.changed = threading.Condition()

    def servers(self, topic: str) -> list[str]:
        """Return the queues of the servers of a topic."""
        with self.changed:
            return sorted(self.fanouts.get(topic, ()))

    def put(self, name: str, message: Envelope, first: bool = False) -> None:
        """Add a message, which waits until a consumer takes it.

        :param first: before all others of its queue
        """
        with self.changed:
            waiting = self.queues.setdefault(name, collections.deque())
            if first:
                waiting.appendleft(message)
            else:
                waiting.append(message)
            self.changed.notify_all()


_brokers: dict[str, Broker] = {}


def broker(name: str) -> Broker:
    """Return the process's broker of a name."""
    return _brokers.setdefault(name, Broker())


def _broker_of(url: Any) -> Broker:
    hosts = ','.join(host.hostname or '' for host in url.hosts)
    return broker(f'{hosts}/{url.virtual_host or ""}')


class InprocConsumer(Consumer):
    """Consumes the requests of a server.

    :param url: parsed transport URL
    :param names: queues; casts to every server of the last one, a topic, go
        to the first
    :param take: called with each request, on the consumer's thread
    """

    def __init__(
        self,
        url: Any,
        exchange: str,
        names: Sequence[str],
        take: Callable[[Request], None],
        on_end: worker.OnEnd | None = None,
    ) -> None:
        super().__init__(exchange)
        self._bus = _broker_of(url)
        self._take = take
        self._names = names
        self._inbox: collections.deque[Callable[[], None]] = (
            collections.deque()
        )
        self._stopping = self._ended = False
        self._thread = worker.new_thread('bus', self._run, on_end)

    def start(self) -> None:
        with self._bus.changed:
            servers = self._bus.fanouts.setdefault(self._names[-1], set())
            servers.add(self._names[0])
        self._thread.start()

    def call(self, work: Callable[..., None], *args: Any) -> None:
        with self._bus.changed:
            self._inbox.append(functools.partial(work, *args))
            self._bus.changed.notify_all()

    def stop_consuming(self) -> None:
        with self._bus.changed:
            self._stopping = True
            for servers in self._bus.fanouts.values():
                servers.discard(self._names[0])

    def close(self) -> None:
        with self._bus.changed:
            self._ended = True
            self._bus.changed.notify_all()
        if self._thread.ident:
            self._thread.join()

    def publish(self, publication: Publication) -> None:
        """Put a cast into its queue, or a reply if its caller waits."""
        exchange = publication.exchange
        key = publication.key or publication.destination
        if exchange:
            names = [f'{exchange}/{key}']
            topic = wire.topic_of_peers(key)
            if topic is not None:
                names = self._bus.servers(f'{exchange}/{topic}')
            for name in names:
                self._bus.put(name, Envelope(publication.body))
        elif (replies := self._bus.replies.get(key)) is not None:
            replies.put(publication.body)
        publication.done(True)

    def acknowledge(self, request: Request) -> None:
        """Do nothing: the message has left its queue."""

    def hold(self, request: Request) -> None:
        """Put the message back as the first of its queue."""
        name, sent = request.tags
        self._bus.put(name, sent._replace(redelivered=True), first=True)

    def _run(self) -> None:
        while not self._ended:
            with self._bus.changed:
                while (work := self._next()) is None:
                    self._bus.changed.wait()
            try:
                work()
            except Exception:
                LOG.exception('Work on the thread of the message bus failed')

    def _next(self) -> Callable[[], None] | None:
        """Return the next work; None: there is none yet."""
        if self._ended:
            return lambda: None
        if self._inbox:
            return self._inbox.popleft()
        for name in () if self._stopping else self._names:
            if waiting := self._bus.queues.get(name):
                return functools.partial(self._accept, name, waiting.popleft())
        return None

    def _accept(self, name: str, sent: Envelope) -> None:
        content = wire.read(sent.body, sent.properties)
        request = wire.request(
            self, content, sent.properties, sent.redelivered
        )
        request.tags = name, sent
        self._take(request)


class InprocMessage(base.RpcIncomingMessage):  # type: ignore[misc]
    """A message for one of oslo.messaging's own servers and listeners."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.ctxt, request.message)
        self._request = request

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Put the reply into the caller's queue, if it waits."""
        to, consumer = self._request.reply_q, self._request.consumer
        if to is not None:
            error = failure[1] if failure else None
            plain = jsonutils.to_primitive(reply)
            body = wire.reply(self._request.msg_id, plain, error)
            consumer.publish(Publication(to, body, lambda sent: None))

    def acknowledge(self) -> None:
        """Do nothing: the message has left its queue."""

    def requeue(self) -> None:
        """Put the message back as the first of its queue."""
        self._request.requeue()

    def heartbeat(self) -> None:
        """Do nothing: the caller is in the same process."""


class InprocListener(base.Listener):  # type: ignore[misc]
    """Consumes messages for oslo.messaging's own servers and listeners.

    :param names: as of :class:`InprocConsumer`
    """

    def __init__(self, url: Any, names: Sequence[str]) -> None:
        super().__init__(1, None)
        self._consumer = InprocConsumer(url, '', names, self._take)

    def _take(self, request: Request) -> None:
        self.on_incoming_callback([InprocMessage(request)])

    def start(self, on_incoming_callback: Any) -> None:
        super().start(on_incoming_callback)
        self._consumer.start()

    def stop(self) -> None:
        self._consumer.stop_consuming()

    def cleanup(self) -> None:
        self._consumer.close()


class InprocDriver(base.BaseDriver):  # type: ignore[misc]
    """oslo.messaging's driver interface on a :class:`Broker`."""

    def __init__(
        self,
        conf: Any,
        url: Any,
        default_exchange: str | None = None,
        allowed_remote_exmods: Any = None,
    ) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._bus = _broker_of(url)

    def require_features(self, requeue: bool = False) -> None:
        """Do nothing: the driver has all features."""

    def send(
        self,
        target: Any,
        ctxt: Any,
        message: Any,
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        """Send a message, and wait for the reply of a call.

        :raises MessagingTimeout: no reply came in time
        """
        more: dict[str, Any] = {}
        replies: queue.Queue[bytes] = queue.Queue()
        properties = wire.PROPERTIES
        if wait_for_reply:
            name = uuid.uuid4().hex
            more = {'_msg_id': name, '_reply_q': name}
            self._bus.replies[name] = replies
            if timeout is not None:
                lives = str(math.ceil(1000 * timeout))
                properties = {**properties, 'expiration': lives}
        try:
            for name in self._queues(target):
                content = wire.cast(ctxt, message, **more)
                body = wire.enclose(jsonutils.dumps(content))
                self._bus.put(name, Envelope(body, properties))
            return self._answer(replies, timeout) if wait_for_reply else None
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout(
                f'No reply on topic {target.topic}'
            ) from None
        finally:
            self._bus.replies.pop(more.get('_reply_q', ''), None)

    def _answer(
        self, replies: queue.Queue[bytes], timeout: float | None
    ) -> Any:
        """Wait for a reply; return its result, or raise its failure.

        :raises Empty: no reply came in time
        """
        reply = wire.read(replies.get(timeout=timeout), wire.PROPERTIES)
        if reply['failure']:
            raise exception_of(reply['failure'], self._allowed_remote_exmods)
        return reply['result']

    def send_notification(
        self,
        target: Any,
        ctxt: Any,
        message: Any,
        version: float,
        retry: int | None = None,
    ) -> None:
        self.send(target, ctxt, message)

    def listen(
        self, target: Any, batch_size: int, batch_timeout: float | None
    ) -> Any:
        """Consume the messages of a topic and of one server on it."""
        topic = self._name(target, target.topic)
        return InprocListener(self._url, [f'{topic}.{target.server}', topic])

    def listen_for_notifications(
        self,
        targets_and_priorities: Any,
        pool: str | None,
        batch_size: int,
        batch_timeout: float | None,
    ) -> Any:
        """Consume notifications of some topics and priorities."""
        names = [
            self._name(target, f'{target.topic}.{priority}')
            for target, priority in targets_and_priorities
        ]
        return InprocListener(self._url, names)

    def cleanup(self) -> None:
        """Do nothing: there is no connection."""

    def _name(self, target: Any, topic: str) -> str:
        return f'{target.exchange or self._default_exchange}/{topic}'

    def _queues(self, target: Any) -> list[str]:
        topic = self._name(target, target.topic)
        if target.fanout:
            return self._bus.servers(topic)
        return [f'{topic}.{target.server}' if target.server else topic]


def exception_of(text: str, modules: Container[str]) -> Any:
    """Return the exception of a failure, as oslo.messaging's clients do.

    :param modules: whose exceptions may be made, besides builtins
    """
    data = json.loads(text)
    name, module = data['class'], data['module']
    if module != 'builtins' and module not in modules:
        return oslo_messaging.RemoteError(name, data['message'], data['tb'])
    kind: Any = getattr(importlib.import_module(module), name)
    error: Any = kind(*data['args'], **data['kwargs'])
    full = '\n'.join((data['message'], *data['tb']))
    members = {'__str__': lambda _: full, '__module__': f'{module}_Remote'}
    try:
        error.__class__ = type(f'{name}_Remote', (kind,), members)
    except TypeError:
        # The class of a builtin exception cannot change.
        error.args = (full, *error.args[1:])
    return error
