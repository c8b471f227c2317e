"""An in-process message bus, ``inproc://NAME``: no server, no polling.

The bus is for tests, demonstrations and single-node use. Messages are encoded
as JSON, as on a broker, and are lost when the process ends. Any thread may use
a broker; its condition guards the queues.
"""

from __future__ import annotations

import collections
import queue
import threading
import time
import uuid
from typing import Any, NamedTuple

import oslo_messaging
from oslo_messaging._drivers import base, common
from oslo_serialization import jsonutils


class Broker:
    """The queues of one bus, by name."""

    def __init__(self) -> None:
        self.queues: dict[str, collections.deque[Any]] = {}
        self.fanouts: dict[str, set[str]] = {}
        self.changed = threading.Condition()

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


class Envelope(NamedTuple):
    """A message on its way.

    :ivar text: context and message as JSON
    :ivar replies: queue of the waiting caller; None: no caller waits
    :ivar redelivered: whether it was delivered before
    :ivar timeout: after how many seconds the caller gives up
    """

    unique_id: str
    text: str
    replies: Any
    redelivered: bool = False
    timeout: float | None = None


class InprocMessage(base.RpcIncomingMessage):  # type: ignore[misc]
    """A message with the queue of its reply.

    :ivar redelivered: whether it was delivered before
    :ivar deadline: monotonic time at which the caller gives up
    :ivar settled: whether the reply was sent
    """

    def __init__(self, bus: Broker, queue_name: str, sent: Envelope) -> None:
        ctxt, message = jsonutils.loads(sent.text)
        super().__init__(ctxt, message)
        self._bus = bus
        self._queue_name = queue_name
        self._sent = sent
        self._replies = sent.replies
        self.unique_id = sent.unique_id
        self.redelivered = sent.redelivered
        self.deadline = sent.timeout and time.monotonic() + sent.timeout
        self.settled = False
        self.orig_msg_id = self.msg_id if sent.replies is not None else None

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Put the reply into the caller's queue, if it waits."""
        self.settled = True
        if self._replies is None:
            return
        if failure:
            failure = common.serialize_remote_exception(failure)
        self._replies.put((jsonutils.dumps(reply), failure))

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
        hosts = ','.join(host.hostname or '' for host in url.hosts)
        self._bus = broker(f'{hosts}/{url.virtual_host or ""}')

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
        replies: queue.Queue[Any] | None = (
            queue.Queue() if wait_for_reply else None
        )
        text = jsonutils.dumps([ctxt, message])
        for name in self._queues(target):
            envelope = Envelope(
                uuid.uuid4().hex,
                text,
                replies,
                timeout=timeout if wait_for_reply else None,
            )
            self._bus.put(name, envelope)
        if replies is None:
            return None
        try:
            reply, failure = replies.get(timeout=timeout)
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout(
                f'No reply on topic {target.topic}'
            ) from None
        if failure:
            raise common.deserialize_remote_exception(
                failure, self._allowed_remote_exmods
            )
        return jsonutils.loads(reply)

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
            with self._bus.changed:
                return sorted(self._bus.fanouts.get(topic, ()))
        return [f'{topic}.{target.server}' if target.server else topic]
