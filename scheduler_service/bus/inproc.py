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
import time
import uuid
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import oslo_messaging
from oslo_messaging._drivers import base
from oslo_serialization import jsonutils

from scheduler_service.bus import wire
from scheduler_service.bus.wire import Consumer, Publication, Request

LOG = logging.getLogger(__name__)


class Broker:
    """The queues of one bus, by name.

    :ivar replies: queues of waiting callers
    """

    def __init__(self) -> None:
        self.queues: dict[str, collections.deque[Any]] = {}
        self.fanouts: dict[str, set[str]] = {}
        self.replies: dict[str, queue.Queue[bytes]] = {}
        self.changed = threading.Condition()

    def servers(self, topic: str) -> list[str]:
        """Return the queues of the servers of a topic."""
        with self.changed:
            return sorted(self.fanouts.get(topic, ()))

    def put(self, name: str, message: Any) -> None:
        """Add a message, which waits until a listener consumes it."""
        with self.changed:
            waiting = self.queues.setdefault(name, collections.deque())
            waiting.append(message)
            self.changed.notify_all()

    def put_back(self, name: str, message: Any) -> None:
        """Put a message back as the first of its queue."""
        with self.changed:
            self.queues.setdefault(name, collections.deque()).appendleft(
                message
            )
            self.changed.notify_all()

    def get(self, names: list[str]) -> Any:
        """Return (queue, next message) of some queues; None: all are empty.

        Called with ``changed`` held.
        """
        for name in names:
            waiting = self.queues.get(name)
            if waiting:
                return name, waiting.popleft()
        return None


_brokers: dict[str, Broker] = {}
_brokers_lock = threading.Lock()


def broker(name: str) -> Broker:
    """Return the process's broker of a name."""
    with _brokers_lock:
        return _brokers.setdefault(name, Broker())


def name_of(url: Any) -> str:
    """Return the name of the broker of a transport URL."""
    hosts = ','.join(host.hostname or '' for host in url.hosts)
    return f'{hosts}/{url.virtual_host or ""}'


class Envelope(NamedTuple):
    """A message on its way.

    :ivar properties: as those of AMQP
    :ivar redelivered: whether it was delivered before
    """

    body: bytes
    properties: Mapping[str, Any] = wire.PROPERTIES
    redelivered: bool = False


class InprocConsumer(Consumer):
    """Consumes the requests of a server.

    :param url: parsed transport URL
    :param target: exchange, topic and name of the server; with ``fanout`` it
        also gets casts to every server of the topic
    :param take: called with each request, on the consumer's thread
    """

    def __init__(
        self,
        url: Any,
        exchange: str,
        target: Any,
        take: Callable[[Request], None],
    ) -> None:
        super().__init__(exchange)
        self._bus = broker(name_of(url))
        self._take = take
        self._topic = f'{target.exchange}/{target.topic}'
        self._server = f'{self._topic}.{target.server}'
        self._inbox: collections.deque[Callable[[], None]] = (
            collections.deque()
        )
        # Request -> (queue, message).
        self._in_work: dict[Request, tuple[str, Envelope]] = {}
        self._stopping = self._ended = False
        self._thread = threading.Thread(
            target=self._run, name='bus', daemon=True
        )

    def start(self) -> None:
        with self._bus.changed:
            self._bus.fanouts.setdefault(self._topic, set()).add(self._server)
        self._thread.start()

    def call(self, work: Callable[..., None], *args: Any) -> None:
        with self._bus.changed:
            self._inbox.append(functools.partial(work, *args))
            self._bus.changed.notify_all()

    def stop_consuming(self) -> None:
        with self._bus.changed:
            self._stopping = True
            for names in self._bus.fanouts.values():
                names.discard(self._server)

    def close(self) -> None:
        """End the thread."""
        with self._bus.changed:
            self._ended = True
            self._bus.changed.notify_all()
        if self._thread.ident:
            self._thread.join()

    def publish(self, publication: Publication) -> None:
        """Put a cast into its queue, or a reply if its caller waits."""
        if publication.exchange:
            exchange, key = publication.exchange, publication.key
            topic = wire.topic_of_peers(key)
            for name in (
                [f'{exchange}/{key}']
                if topic is None
                else self._bus.servers(f'{exchange}/{topic}')
            ):
                self._bus.put(name, Envelope(publication.body))
        else:
            replies = self._bus.replies.get(publication.key)
            if replies is not None:
                replies.put(publication.body)
        publication.done(True)

    def acknowledge(self, request: Request) -> None:
        """Forget the message, which has left its queue."""
        del self._in_work[request]

    def hold(self, request: Request) -> None:
        """Put the message back as the first of its queue."""
        name, sent = self._in_work.pop(request)
        self._bus.put_back(name, sent._replace(redelivered=True))

    def _run(self) -> None:
        names = [self._server, self._topic]
        while not self._ended:
            taken = None
            with self._bus.changed:
                if not self._inbox and not self._stopping:
                    taken = self._bus.get(names)
                if not (self._inbox or taken or self._ended):
                    self._bus.changed.wait()
            try:
                if taken is not None:
                    self._accept(*taken)
                elif self._inbox:
                    self._inbox.popleft()()
            except Exception:
                LOG.exception('Work on the thread of the message bus failed')

    def _accept(self, name: str, sent: Envelope) -> None:
        """Hand a message to the server."""
        request = sent_request(self, sent)
        self._in_work[request] = name, sent
        self._take(request)


def sent_request(consumer: Any, sent: Envelope) -> Request:
    """Return the request of a message.

    :raises UnreadableMessage: it is not in the wire form
    """
    content = wire.read(sent.body, sent.properties)
    return wire.request(consumer, content, sent.properties, sent.redelivered)


class InprocMessage(base.RpcIncomingMessage):  # type: ignore[misc]
    """A message for one of oslo.messaging's own servers and listeners."""

    def __init__(self, bus: Broker, queue_name: str, sent: Envelope) -> None:
        request = sent_request(None, sent)
        super().__init__(request.ctxt, request.message)
        self._bus = bus
        self._queue_name = queue_name
        self._sent = sent
        self._msg_id = request.msg_id
        self._replies = bus.replies.get(request.reply_q or '')

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Put the reply into the caller's queue, if it waits."""
        if self._replies is not None:
            error = failure[1] if failure else None
            plain = jsonutils.to_primitive(reply)
            self._replies.put(wire.reply(self._msg_id, plain, error))

    def acknowledge(self) -> None:
        """Do nothing: the message has left its queue."""

    def requeue(self) -> None:
        """Put the message back as the first of its queue."""
        again = self._sent._replace(redelivered=True)
        self._bus.put_back(self._queue_name, again)

    def heartbeat(self) -> None:
        """Do nothing: the caller is in the same process."""


class InprocListener(base.PollStyleListener):  # type: ignore[misc]
    """Consumes messages of some queues."""

    def __init__(self, bus: Broker, names: list[str]) -> None:
        super().__init__()
        self._bus = bus
        self._names = names
        self._stopped = False

    @base.batch_poll_helper  # type: ignore[untyped-decorator]
    def poll(self, timeout: float | None = None) -> Any:
        """Return the next message, None after *timeout* or when stopped."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._bus.changed:
            while True:
                taken = self._bus.get(self._names)
                if taken is not None:
                    return InprocMessage(self._bus, *taken)
                left = deadline and deadline - time.monotonic()
                if self._stopped or (left is not None and left <= 0):
                    return None
                self._bus.changed.wait(left)

    def stop(self) -> None:
        """Make ``poll`` return, and consume nothing more."""
        with self._bus.changed:
            self._stopped = True
            for names in self._bus.fanouts.values():
                names.difference_update(self._names)
            self._bus.changed.notify_all()


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
        self._bus = broker(name_of(url))

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
        """Publish a notification."""
        self.send(target, ctxt, message)

    def listen(
        self, target: Any, batch_size: int, batch_timeout: float | None
    ) -> Any:
        """Consume the messages of a topic and of one server on it."""
        topic = self._name(target, target.topic)
        server = f'{topic}.{target.server}'
        with self._bus.changed:
            self._bus.fanouts.setdefault(topic, set()).add(server)
        listener = InprocListener(self._bus, [server, topic])
        return base.PollStyleListenerAdapter(
            listener, batch_size, batch_timeout
        )

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
        listener = InprocListener(self._bus, names)
        return base.PollStyleListenerAdapter(
            listener, batch_size, batch_timeout
        )

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
    made: Any = kind(*data['args'], **data['kwargs'])
    full = '\n'.join((data['message'], *data['tb']))
    members = {'__str__': lambda _: full, '__module__': f'{module}_Remote'}
    try:
        made.__class__ = type(f'{name}_Remote', (kind,), members)
    except TypeError:
        # The class of a builtin exception cannot change.
        made.args = (full, *made.args[1:])
    return made
