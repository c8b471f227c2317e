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
import logging
import threading
import time
import uuid
from typing import Any

import kombu
import msgspec
import oslo_messaging
from amqp import basic_message
from oslo_config import cfg
from oslo_messaging._drivers import amqp, amqpdriver, base, common
from oslo_messaging._drivers import impl_rabbit as stock

LOG = logging.getLogger(__name__)
NAME = 'rabbit_late_ack'
# The name before, for one release.
OLD_NAME = 'latrabbit'
_PREFETCH = 128
_CONTEXT = '_context_'
_DEFAULT_EXCHANGE: Any = kombu.Exchange('')
_encode = msgspec.json.Encoder().encode
# How long the poller may wait for a message while acknowledgements are due,
# in seconds: usually, and with the prefetch nearly used up.
_POLL_S = 0.02
_SHORT_POLL_S = 0.001
# How long the broker may take to confirm a reply that is sent by a thread
# which must not wait, and for how long such threads stop sending after it
# took longer, in seconds.
_CONFIRM_S = 0.5
_PAUSE_S = 1.0


def _as_message(body: bytes) -> Any:
    return basic_message.Message(
        body,
        content_type='application/json',
        content_encoding='utf-8',
        delivery_mode=2,
    )


class LateAckMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A request that is acknowledged when its work is done.

    :ivar redelivered: whether the broker delivered it before, to any daemon
    :ivar encodes_structs: replies may hold typed documents, not only plain
        values
    """

    redelivered = False
    encodes_structs = True

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Send the reply, once.

        :raises MessageUndeliverable: the caller's queue is not there
        """
        if self.orig_msg_id:
            body = self._body(reply, failure)
            self.listener.driver.publish_reply(self.reply_q, body)

    def try_reply(self, reply: Any = None, failure: Any = None) -> bool:
        """Send the reply if that needs no waiting.

        :return: whether it was sent, or nobody waits for one
        """
        if not self.orig_msg_id:
            return True
        body = self._body(reply, failure)
        sent: bool = self.listener.driver.try_publish(self.reply_q, body)
        return sent

    def _body(self, reply: Any, failure: Any) -> bytes:
        if failure:
            failure = common.serialize_remote_exception(failure)
        message = {
            'result': reply,
            'failure': failure,
            'ending': True,
            '_msg_id': self.msg_id,
            amqp.UNIQUE_ID: uuid.uuid4().hex,
        }
        return _encode(
            {'oslo.version': '2.0', 'oslo.message': _encode(message).decode()}
        )

    def acknowledge(self) -> None:
        """Have the polling thread acknowledge it with its next poll."""
        self._message_operations_handler.do(self._acknowledge_now)

    def requeue(self) -> None:
        """Have the polling thread return it to its queue."""
        self._message_operations_handler.do(self._requeue_now)

    def _acknowledge_now(self) -> None:
        self.listener.settled(self.unique_id)
        try:
            self.message.acknowledge()
        except Exception as error:
            # The connection is lost, so the broker delivers it again.
            LOG.warning('Acknowledging a request failed: %s', error)

    def _requeue_now(self) -> None:
        self.listener.settled(None)
        try:
            self.message.requeue()
        except Exception as error:
            LOG.warning('Returning a request to its queue failed: %s', error)


class LateAckListener(amqpdriver.AMQPListener):  # type: ignore[misc]
    """Takes requests, which stay unacknowledged until their work is done."""

    message_cls = LateAckMessage

    def __init__(self, driver: Any, conn: Any) -> None:
        self._unacknowledged = 0
        self._idle_poll_s = 0.0
        super().__init__(driver, conn)

    @property
    def _current_timeout(self) -> float:
        """How long the base class may wait for the next message."""
        if not self._unacknowledged:
            return self._idle_poll_s
        crowded = self._unacknowledged * 4 > self.driver.prefetch_size * 3
        return _SHORT_POLL_S if crowded else _POLL_S

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
        self.incoming.append(
            LateAckMessage(
                self,
                context,
                message,
                unique_id,
                message.pop('_msg_id', None),
                message.pop('_reply_q', None),
                message.pop('_timeout', None),
                self._obsolete_reply_queues,
                self._message_operations_handler,
            )
        )
        info = message._raw_message.delivery_info or {}
        self.incoming[-1].redelivered = bool(info.get('redelivered'))

    def poll(
        self,
        timeout: float | None = None,
        batch_size: int = 1,
        batch_timeout: float | None = None,
    ) -> list[Any]:
        """Return the next message, read straight from the socket.

        The slower base class, which reconnects and sends heartbeats, polls
        whenever nothing arrives for a moment or the connection is lost.
        """
        if not self.incoming and not self._shutdown.is_set():
            self._message_operations_handler.process()
            self._drain()
        if self.incoming:
            return [self.incoming.pop(0)]
        messages: list[Any] = super().poll(timeout, batch_size, batch_timeout)
        return messages

    def _drain(self) -> None:
        conn = self.conn.connection
        lost = conn.channel is None or not conn.connection.connected
        if lost or conn._new_tags:
            return
        with conn._connection_lock:
            try:
                conn.connection.drain_events(timeout=_POLL_S)
            except TimeoutError:
                return
            except Exception:
                # Have the base class reconnect and consume again.
                conn._new_tags = set(conn._consumers.values())

    def is_connected(self) -> bool:
        """Whether its connection to the broker is open."""
        inner = self.conn.connection
        return inner.channel is not None and bool(inner.connection.connected)

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
        self._local = threading.local()
        self._paused_until = 0.0
        self._listeners: list[LateAckListener] = []

    def is_connected(self) -> bool:
        """Whether every listener has a connection to the broker."""
        return all(listener.is_connected() for listener in self._listeners)

    def publish_reply(self, queue: str, body: bytes) -> None:
        """Publish a reply; wait for a connection and for the confirmation.

        It goes to the default exchange, which needs no declaration.

        :raises MessageUndeliverable: there is no such queue
        """
        conn = getattr(self._local, 'conn', None)
        if conn is None:
            conn = self._local.conn = self._get_connection(common.PURPOSE_SEND)
        message = _as_message(body)

        def publish(*_: Any) -> None:
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
        if time.monotonic() < self._paused_until:
            return False
        conn = getattr(self._local, 'conn', None)
        if conn is None:
            conn = self._local.conn = self._get_connection(common.PURPOSE_SEND)
        inner = conn.connection
        if inner.channel is not None and inner.connection.connected:
            try:
                with inner._connection_lock:
                    inner.channel.basic_publish(
                        _as_message(body),
                        '',
                        queue,
                        mandatory=True,
                        confirm_timeout=_CONFIRM_S,
                    )
            except oslo_messaging.MessageUndeliverable:
                return False
            except Exception as error:
                LOG.info('Leaving a reply to the publisher: %s', error)
                self._paused_until = time.monotonic() + _PAUSE_S
            else:
                return True
        self._local.conn = None
        return False

    def listen(
        self, target: Any, batch_size: int, batch_timeout: float | None
    ) -> Any:
        """Take the requests of a topic and of one server on it."""
        conn = self._get_connection(common.PURPOSE_LISTEN)
        listener = LateAckListener(self, conn)
        self._listeners.append(listener)
        exchange = self._get_exchange(target)
        for topic in (target.topic, f'{target.topic}.{target.server}'):
            conn.declare_topic_consumer(
                exchange_name=exchange, topic=topic, callback=listener
            )
        conn.declare_fanout_consumer(target.topic, listener)
        return base.PollStyleListenerAdapter(
            listener, batch_size, batch_timeout
        )
