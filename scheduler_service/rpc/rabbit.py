"""RabbitMQ with acknowledgements after the work, not before.

The stock driver acknowledges a request in the consumer's callback, before
anybody has looked at it: a daemon that is killed loses what it took. This
one acknowledges when the server says so. A message may therefore come twice,
and the engine answers the same thing twice.
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
NAME = 'latrabbit'
_PREFETCH = 128
_CONTEXT = '_context_'
_DEFAULT_EXCHANGE: Any = kombu.Exchange('')
_encode = msgspec.json.Encoder().encode
# How long the poller may sleep while acknowledgements are due, in seconds:
# with room for more messages, and with hardly any.
_NAP_S = 0.02
_SHORT_NAP_S = 0.001
# How long the broker may take to confirm a reply, in seconds.
_CONFIRM_S = 0.5
_PATIENCE_S = 1.0


def _as_message(body: bytes) -> Any:
    return basic_message.Message(
        body,
        content_type='application/json',
        content_encoding='utf-8',
        delivery_mode=2,
    )


class LateAckMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A request that is acknowledged when its work is done.

    :ivar redelivered: whether it was delivered before, to anybody
    """

    redelivered = False
    # Its encoder knows the typed answers.
    takes_structs = True

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Send the reply, once.

        :raises MessageUndeliverable: the caller's queue is not there
        """
        if self.orig_msg_id:
            body = self._body(reply, failure)
            self.listener.driver.publish_reply(self.reply_q, body)

    def reply_at_once(self, reply: Any = None, failure: Any = None) -> bool:
        """Send the reply if that takes no waiting; whether it was sent."""
        if not self.orig_msg_id:
            return True
        body = self._body(reply, failure)
        sent: bool = self.listener.driver.publish_at_once(self.reply_q, body)
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
        """Have the polling thread acknowledge it on its next turn."""
        self._message_operations_handler.do(self._acknowledge_now)

    def requeue(self) -> None:
        """Have the polling thread give it back to the broker."""
        self._message_operations_handler.do(self._requeue_now)

    def _acknowledge_now(self) -> None:
        self.listener.settled(self.unique_id)
        try:
            self.message.acknowledge()
        except Exception as error:
            # The connection is gone, and the broker delivers it again.
            LOG.warning('A request could not be acknowledged: %s', error)

    def _requeue_now(self) -> None:
        self.listener.settled(None)
        try:
            self.message.requeue()
        except Exception as error:
            LOG.warning('A request could not be given back: %s', error)


class LateAckListener(amqpdriver.AMQPListener):  # type: ignore[misc]
    """Takes requests and keeps them unacknowledged until they are settled."""

    message_cls = LateAckMessage

    def __init__(self, driver: Any, conn: Any) -> None:
        self._open = 0
        self._idle_nap = 0.0
        super().__init__(driver, conn)

    @property
    def _current_timeout(self) -> float:
        """How long the base class may wait for the next message."""
        if not self._open:
            return self._idle_nap
        crowded = self._open * 4 > self.driver.prefetch_size * 3
        return _SHORT_NAP_S if crowded else _NAP_S

    @_current_timeout.setter
    def _current_timeout(self, value: float) -> None:
        self._idle_nap = value

    def __call__(self, message: Any) -> None:
        """Take a message; one that was settled here before is dropped."""
        unique_id = message.pop(amqp.UNIQUE_ID, None)
        if unique_id and unique_id in self.msg_id_cache.prev_msgids:
            LOG.info('A request that was answered before came again')
            message.acknowledge()
            return
        self._open += 1
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
        self.incoming[-1].redelivered = self._came_before(message)

    def _came_before(self, message: Any) -> bool:
        """Whether the broker delivered a message before, to anybody."""
        info = message._raw_message.delivery_info or {}
        return bool(info.get('redelivered'))

    def poll(
        self,
        timeout: float | None = None,
        batch_size: int = 1,
        batch_timeout: float | None = None,
    ) -> list[Any]:
        """Return the next message; straight from the socket while all is well.

        The base class's way, which heals connections and keeps heartbeats,
        is taken whenever nothing comes for a moment or anything is wrong.
        """
        if not self.incoming and not self._shutdown.is_set():
            self._message_operations_handler.process()
            self._drain()
        if self.incoming:
            return [self.incoming.pop(0)]
        found: list[Any] = super().poll(timeout, batch_size, batch_timeout)
        return found

    def _drain(self) -> None:
        conn = self.conn.connection
        lost = conn.channel is None or not conn.connection.connected
        if lost or conn._new_tags:
            return
        with conn._connection_lock:
            try:
                conn.connection.drain_events(timeout=_NAP_S)
            except TimeoutError:
                return
            except Exception:
                # The base class connects again, and consumes again.
                conn._new_tags = set(conn._consumers.values())

    def hears(self) -> bool:
        """Whether its connection is there."""
        inner = self.conn.connection
        return inner.channel is not None and bool(inner.connection.connected)

    def settled(self, unique_id: str | None) -> None:
        """Note that a message is about to be acknowledged or given back."""
        self._open = max(0, self._open - 1)
        if unique_id is not None:
            self.msg_id_cache.add(unique_id)


class LateAckRabbitDriver(stock.RabbitDriver):  # type: ignore[misc]
    """The stock driver but for its listener, and one kept reply channel."""

    def __init__(
        self,
        conf: Any,
        url: Any,
        default_exchange: str | None = None,
        allowed_remote_exmods: Any = None,
    ) -> None:
        group = cfg.OptGroup(name='oslo_messaging_rabbit')
        conf.register_opts(stock.rabbit_opts, group=group)
        # Without a bound one daemon would take the whole queue for itself.
        conf.set_default('rabbit_qos_prefetch_count', _PREFETCH, group.name)
        url = copy.copy(url)
        url.transport = 'rabbit'
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._kept = threading.local()
        self._patient_until = 0.0
        self._listeners: list[LateAckListener] = []

    def hears(self) -> bool:
        """Whether the broker is there to take requests from."""
        return all(one.hears() for one in self._listeners)

    def publish_reply(self, queue: str, body: bytes) -> None:
        """Publish a reply over the calling thread's kept connection.

        Straight to the channel: exchanges need no declaring here, and what
        the broker returns or does not confirm is an error.

        :raises MessageUndeliverable: nobody has such a queue
        """
        conn = getattr(self._kept, 'conn', None)
        if conn is None:
            conn = self._kept.conn = self._get_connection(common.PURPOSE_SEND)
        message = _as_message(body)

        def publish(*_: Any) -> None:
            conn.connection.channel.basic_publish(
                message, '', queue, mandatory=True
            )

        conn.connection._ensure_publishing(publish, _DEFAULT_EXCHANGE, None)

    def publish_at_once(self, queue: str, body: bytes) -> bool:
        """Publish a reply if the connection is well; whether it was.

        For a thread that must not wait: a connection that is lost is let
        go of, and a broker that does not confirm in time is given up, and
        not tried in this way for a moment.
        """
        if time.monotonic() < self._patient_until:
            return False
        conn = getattr(self._kept, 'conn', None)
        if conn is None:
            conn = self._kept.conn = self._get_connection(common.PURPOSE_SEND)
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
                LOG.info('A reply is sent again: %s', error)
                self._patient_until = time.monotonic() + _PATIENCE_S
            else:
                return True
        self._kept.conn = None
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
