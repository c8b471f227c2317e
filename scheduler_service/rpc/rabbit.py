"""A RabbitMQ driver that acknowledges a request after its work, not before.

The stock driver acknowledges a request in the consumer's callback, before any
work: a daemon that is killed loses what it took. This one acknowledges when
the server says so. A request may therefore be delivered twice; its claim is
keyed by the instance, so that it gets the same reply.

The polling thread owns the listener and its connection. Replies may be sent
by any thread, each over a connection of its own.
"""

from __future__ import annotations

import copy
import functools
import logging
import threading
import time
from typing import Any

import kombu
import oslo_messaging
from amqp.exceptions import MessageNacked
from oslo_config import cfg
from oslo_messaging._drivers import amqp, amqpdriver, base, common
from oslo_messaging._drivers import impl_rabbit as stock

from scheduler_service.rpc import queues
from scheduler_service.rpc.context import sent_at
from scheduler_service.rpc.rabbit_connection import (
    Connection,
    as_message,
    refusals,
)
from scheduler_service.rpc.rabbit_message import (
    LateAckMessage,
    deadline_of,
    reply_address,
)
from scheduler_service.rpc.shared_queue import SharedQueue

LOG = logging.getLogger(__name__)
_PREFETCH = 128
_CONTEXT = '_context_'
_DEFAULT_EXCHANGE: Any = kombu.Exchange('')
# How long the poller may wait for a message while acknowledgements are due,
# in seconds: usually, and with the prefetch nearly used up.
_POLL_S = 0.02
_SHORT_POLL_S = 0.001
# The poller looks this often whether it is to pause, in seconds.
_LONG_POLL_S = 0.25
# The pause before an unreachable broker is tried again, in seconds.
_RECONNECT_S = 0.5
# A first connection that takes longer counts as an unreachable broker.
_CONNECT_S = 2.0
# How long the broker may take to confirm a reply that is sent by a thread
# which must not wait, and for how long such threads stop sending after it
# took longer, in seconds.
_CONFIRM_S = 0.5
_PAUSE_S = 1.0
# Of so many reply queues it is known that they are missing or full.
_MAX_REFUSING = 1024


class LateAckListener(amqpdriver.AMQPListener):  # type: ignore[misc]
    """Takes requests, which stay unacknowledged until their work is done."""

    message_cls = LateAckMessage

    def __init__(self, driver: Any, conn: Any) -> None:
        self._unacknowledged = 0
        self._idle_poll_s = 0.0
        self._shared: SharedQueue | None = None
        self.own_queue = ''
        super().__init__(driver, conn)

    def share(self, queue: str) -> None:
        """Name the queue that other daemons consume from as well."""
        self._shared = SharedQueue(
            self.conn.connection,
            queue,
            queues.presence_queue(queue),
            self.driver.prefetch_size,
        )

    @property
    def paused(self) -> bool:
        """Whether nothing is to be consumed from the shared queue."""
        return self._shared is not None and self._shared.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        if self._shared is not None:
            self._shared.paused = value

    def _follow_pause(self) -> None:
        """Stop or start consuming from the shared queue, as asked for."""
        for message in self._shared.follow() if self._shared else ():
            message.settled = False
            self.incoming.append(message)

    def hold(self, message: Any) -> None:
        """Take back a request that cannot be worked on now.

        Called by the polling thread.
        """
        if self._shared is not None:
            self._shared.hold(message)

    @property
    def _current_timeout(self) -> float:
        """How long the base class may wait for the next message."""
        return self._ack_wait_s or min(self._idle_poll_s, _LONG_POLL_S)

    @_current_timeout.setter
    def _current_timeout(self, value: float) -> None:
        self._idle_poll_s = value

    def __call__(self, message: Any) -> None:
        """Take a message, unless this process replied to it before."""
        unique_id = message.pop(amqp.UNIQUE_ID, None)
        if unique_id and unique_id in self.msg_id_cache.prev_msgids:
            LOG.info('Dropped a redelivered request that has its reply')
            message.acknowledge()
            return
        self._unacknowledged += 1
        context = {
            key[len(_CONTEXT) :]: message.pop(key)
            for key in list(message)
            if key.startswith(_CONTEXT)
        }
        message_id, replies = reply_address(message)
        self.incoming.append(
            LateAckMessage(
                self,
                context,
                message,
                unique_id,
                message_id,
                replies,
                message.pop('_timeout', None),
                self._obsolete_reply_queues,
                self._message_operations_handler,
            )
        )
        info = message._raw_message.delivery_info or {}
        taken = self.incoming[-1]
        taken.redelivered = bool(info.get('redelivered'))
        taken.deadline = deadline_of(
            message._raw_message.properties,
            sent_at(context) if taken.redelivered else None,
        )
        if self._shared is not None:
            taken.shared = self._shared.delivered(message)
        headers = message._raw_message.headers or {}
        count = headers.get('x-delivery-count')
        taken.returns = count if isinstance(count, int) else 0

    def poll(
        self,
        timeout: float | None = None,
        batch_size: int = 1,
        batch_timeout: float | None = None,
    ) -> list[Any]:
        """Return the next message, read straight from the socket.

        A lost connection is made again first. The slower base class, which
        consumes anew and checks heartbeats, polls where nothing arrived for
        a while.
        """
        if not self._shutdown.is_set():
            self._follow_pause()
            if not self.incoming:
                inner = self.conn.connection
                if not self.is_connected() and not inner.reconnect():
                    self._shutdown.wait(_RECONNECT_S)
                    return []
                # The stock code may have connected again by itself.
                inner.fault = ''
                self._wait()
        messages: list[Any]
        if self.incoming:
            messages = [self.incoming.pop(0)]
        else:
            # It returns now and then, so that a pause is followed.
            brief = self.is_connected() and not self.conn.connection._new_tags
            messages = super().poll(
                timeout or (_SHORT_POLL_S if brief else _LONG_POLL_S),
                batch_size,
                batch_timeout,
            )
        return self._shared.admit(messages) if self._shared else messages

    def _wait(self) -> None:
        """Wait a while for a message; acknowledge on time meanwhile."""
        conn = self.conn.connection
        end = time.monotonic() + _LONG_POLL_S
        while not (self.incoming or conn._new_tags or self._shutdown.is_set()):
            self._message_operations_handler.process()
            left = end - time.monotonic()
            if left <= 0.0:
                break
            self._drain(min(left, self._ack_wait_s or left))

    @property
    def _ack_wait_s(self) -> float:
        """How long acknowledgements may wait; 0: none are due."""
        if not self._unacknowledged:
            return 0.0
        crowded = self._unacknowledged * 4 > self.driver.prefetch_size * 3
        return _SHORT_POLL_S if crowded else _POLL_S

    def _drain(self, timeout: float) -> None:
        """Read from the socket until something was there."""
        conn = self.conn.connection
        with conn._connection_lock:
            try:
                conn.connection.drain_events(timeout=timeout)
            except TimeoutError:
                return
            except Exception as fault:
                # Have the base class reconnect and consume again.
                conn.record_fault(fault)
                conn._new_tags = set(conn._consumers.values())

    def cleanup(self) -> None:
        """Delete the queue of this daemon alone, and close the connection."""
        self._message_operations_handler.stop()
        queues.delete(self.conn.connection, self.own_queue)
        self.conn.close()

    def is_connected(self) -> bool:
        """Whether its connection to the broker is open."""
        inner = self.conn.connection
        return inner.channel is not None and bool(inner.connection.connected)

    def fault(self) -> str:
        """Return why its connection is lost; empty if it is open."""
        if self.is_connected():
            return ''
        inner = self.conn.connection
        return inner.fault or f'{inner.address}: the connection is lost'

    def settled(self, unique_id: str | None) -> None:
        """Record that a message is about to be acknowledged or returned.

        :param unique_id: of a message with a reply; None: it is returned
        """
        self._unacknowledged = max(0, self._unacknowledged - 1)
        if unique_id is not None:
            self.msg_id_cache.add(unique_id)


class LateAckRabbitDriver(stock.RabbitDriver):  # type: ignore[misc]
    """The stock driver with another listener, and a connection for replies.

    Each thread that sends replies keeps its own connection.
    """

    def __init__(
        self,
        conf: Any,
        url: Any,
        default_exchange: str | None = None,
        allowed_remote_exmods: Any = None,
    ) -> None:
        group = cfg.OptGroup(name='oslo_messaging_rabbit')
        conf.register_opts(stock.rabbit_opts, group=group)
        # Without a limit one daemon would take the whole queue.
        conf.set_default('rabbit_qos_prefetch_count', _PREFETCH, group.name)
        url = copy.copy(url)
        url.transport = 'rabbit'
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._connection_pool.connection_cls = functools.partial(
            Connection, on_fault=self._record_fault
        )
        self._fault = ''
        self._hosts = url.hosts
        self._local = threading.local()
        self._paused_until = 0.0
        # Reply queue that is missing or full -> until when, monotonic.
        self._refusing: dict[str, float] = {}
        self._listeners: list[LateAckListener] = []
        self._paused = False
        self._connecting_since: float | None = None

    def pause(self) -> None:
        """Consume nothing more from the queues that daemons share."""
        self._paused = True
        for listener in self._listeners:
            listener.paused = True

    def resume(self) -> None:
        """Consume from the queues that daemons share again."""
        self._paused = False
        for listener in self._listeners:
            listener.paused = False

    def is_connected(self) -> bool:
        """Whether every listener has a connection to the broker."""
        if self._late_to_connect():
            return False
        return all(listener.is_connected() for listener in self._listeners)

    def _late_to_connect(self) -> bool:
        """Whether a listener's first connection takes unusually long."""
        since = self._connecting_since
        return since is not None and time.monotonic() - since > _CONNECT_S

    def fault(self) -> str:
        """Return why the broker is unreachable; empty if it is not known."""
        for listener in self._listeners:
            if found := listener.fault():
                return found
        if self._late_to_connect():
            return self._fault or ', '.join(
                f'{host.hostname}:{host.port}' for host in self._hosts
            )
        return ''

    def _record_fault(self, fault: str) -> None:
        """Keep why a connection could not be made."""
        self._fault = fault

    def publish_reply(self, queue: str, body: bytes) -> None:
        """Publish a reply; wait for a connection and for the confirmation.

        It goes to the default exchange, which needs no declaration.

        :raises MessageUndeliverable: there is no such queue, or it is full
            and refuses the reply
        """
        conn = getattr(self._local, 'conn', None)
        if conn is None:
            conn = self._local.conn = self._get_connection(common.PURPOSE_SEND)
        message = as_message(body)

        def publish(*_: Any) -> None:
            with refusals(queue):
                conn.connection.channel.basic_publish(
                    message, '', queue, mandatory=True
                )

        conn.connection._ensure_publishing(publish, _DEFAULT_EXCHANGE, None)

    def try_publish(self, queue: str, body: bytes) -> bool:
        """Publish a reply on a thread that must not wait.

        A lost connection is dropped. Where the broker takes too long to
        confirm, nothing is published in this way for a moment.

        :return: whether it was published
        """
        if time.monotonic() < self._paused_until or self.refuses(queue):
            return False
        conn = getattr(self._local, 'conn', None)
        if conn is None:
            conn = self._local.conn = self._get_connection(common.PURPOSE_SEND)
        inner = conn.connection
        if inner.channel is not None and inner.connection.connected:
            try:
                with inner._connection_lock:
                    inner.channel.basic_publish(
                        as_message(body),
                        '',
                        queue,
                        mandatory=True,
                        confirm_timeout=_CONFIRM_S,
                    )
            except (oslo_messaging.MessageUndeliverable, MessageNacked):
                self._note_refusal(queue)
                return False
            except Exception as error:
                LOG.info('Leaving a reply to the publisher: %s', error)
                self._paused_until = time.monotonic() + _PAUSE_S
            else:
                return True
        self._local.conn = None
        return False

    def refuses(self, queue: str) -> bool:
        """Whether a queue was missing or full a moment ago."""
        return time.monotonic() < self._refusing.get(queue, 0.0)

    def _note_refusal(self, queue: str) -> None:
        """Send nothing to a queue in this way for a moment."""
        if len(self._refusing) >= _MAX_REFUSING:
            self._refusing.clear()
        self._refusing[queue] = time.monotonic() + _PAUSE_S

    def listen(
        self, target: Any, batch_size: int, batch_timeout: float | None
    ) -> Any:
        """Take the requests of a topic and of one server on it."""
        self._connecting_since = time.monotonic()
        conn = self._get_connection(common.PURPOSE_LISTEN)
        self._connecting_since = None
        listener = LateAckListener(self, conn)
        listener.share(target.topic)
        listener.paused = self._paused
        self._listeners.append(listener)
        listener.own_queue = queues.declare(
            conn.connection, self._get_exchange(target), target, listener
        )
        return base.PollStyleListenerAdapter(
            listener, batch_size, batch_timeout
        )
