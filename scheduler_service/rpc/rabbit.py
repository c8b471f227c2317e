"""A RabbitMQ driver that acknowledges a request after its work, not before.

The stock driver acknowledges a request in the consumer's callback, before any
work: a daemon that is killed loses its requests. This driver acknowledges when
the server calls for it. A request may therefore be delivered twice; its claim
is keyed by the instance, so that it gets the same reply.

The polling thread owns the listener and its connection. Replies may be sent
by any thread, each over a connection of its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import msgspec
import oslo_messaging
from amqp import basic_message
from amqp.exceptions import AMQPError, MessageNacked
from oslo_config import cfg
from oslo_messaging._drivers import amqp, amqpdriver, base, common
from oslo_messaging._drivers import impl_rabbit as stock

from scheduler_service.rpc import queues
from scheduler_service.rpc.context import sent_at

# User and password of an address.
_USER_INFO = re.compile(r'//[^/\s]*@')


def words(fault: BaseException) -> str:
    """Return the text of an error as a line without passwords."""
    text = _USER_INFO.sub('//', ' '.join(str(fault).split()))
    return type(fault).__name__ if _is_mute(fault) else text


def _is_mute(fault: BaseException) -> bool:
    """Whether an error has no text; the library for AMQP invents one."""
    if isinstance(fault, AMQPError):
        return not fault.reply_text
    return not str(fault).strip()


def as_message(body: bytes) -> Any:
    """Return an encoded reply as a message that survives a restart."""
    return basic_message.Message(
        body,
        content_type='application/json',
        content_encoding='utf-8',
        delivery_mode=2,
    )


@contextlib.contextmanager
def refusals(queue: str | None) -> Iterator[None]:
    """Raise an error where a full queue refuses a message.

    The stock code takes a refusal for a lost connection, and never stops
    sending.

    :raises MessageUndeliverable: the queue is full, and refuses
    """
    try:
        yield
    except MessageNacked as refusal:
        raise oslo_messaging.MessageUndeliverable(
            refusal, '', queue, None
        ) from None


class RabbitConnection(stock.Connection):  # type: ignore[misc]
    """The stock connection, with errors for queues that refuse a message.

    It also leaves a node of the broker that hangs for another node.

    :param on_fault: called with each fault; the first connection is made
        within the constructor
    :ivar fault: address and reason if the broker was unreachable the last
        time; else empty
    """

    def __init__(
        self,
        *args: Any,
        on_fault: Callable[[str], None] = lambda fault: None,
        **more: Any,
    ) -> None:
        self.fault = ''
        self._on_fault = on_fault
        super().__init__(*args, **more)

    @property
    def address(self) -> str:
        """The broker's node in use, or the last one tried."""
        return f'{self.connection.hostname}:{self.connection.port}'

    def record_fault(self, fault: BaseException, *rest: Any) -> None:
        """Keep the reason of a lost or failed connection."""
        self.fault = f'{self.address}: {words(fault)}'
        self._on_fault(self.fault)
        # The daemon's health logs it, once.
        LOG.debug('A node of the broker does not answer: %s', self.fault)

    def ensure_connection(self) -> None:
        """Connect anew; the stock code keeps connections to silent nodes."""
        self.connection.collect()
        self._set_current_channel(None)
        self._connect(self.max_retries)

    def _connect(self, max_retries: int | None) -> None:
        """Connect to a node of the broker; keep why earlier nodes failed."""
        self.connection.ensure_connection(
            errback=self.record_fault,
            max_retries=max_retries,
            interval_start=self.interval_start,
            interval_step=self.interval_stepping,
            interval_max=self.interval_max,
        )
        self._set_current_channel(self.connection.channel())
        self.set_transport_socket_timeout()
        self.fault = ''

    def ensure(
        self,
        method: Any,
        retry: int | None = None,
        recoverable_error_callback: Any = None,
        *args: Any,
        **more: Any,
    ) -> Any:
        """Run a method as the stock code does; keep reasons of reconnects."""

        def on_error(fault: BaseException) -> None:
            # An error without a text adds nothing: see the stock code.
            if not (_is_mute(fault) and self.fault):
                self.record_fault(fault)
            if recoverable_error_callback:
                recoverable_error_callback(fault)

        return super().ensure(method, retry, on_error, *args, **more)

    def reconnect(self) -> bool:
        """Try each node of the broker; return whether one answered.

        While consuming, the stock code skips nodes when it reconnects: of
        three nodes it may try the same silent one for ever.
        """
        with self._connection_lock:
            self.connection.collect()
            try:
                self._connect(len(self.connection.alt))
            except Exception as fault:
                self.record_fault(fault)
                return False
            self._new_tags = set(self._consumers.values())
        return True

    def _publish(
        self, exchange: Any, msg: Any, routing_key: Any = None, *how: Any
    ) -> None:
        with refusals(routing_key):
            super()._publish(exchange, msg, routing_key, *how)


_encode = msgspec.json.Encoder().encode


class LateAckMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A request that is acknowledged when its work is done.

    :ivar redelivered: whether the broker delivered it before, to any daemon,
        and it may have been processed
    :ivar shared: whether it came from the queue that daemons share
    :ivar returns: how often it was returned to its queue, or its connection
        was lost; only quorum queues count that
    :ivar deadline: monotonic time at which the caller gives up, from the
        expiration of the message; None: no expiration
    :ivar settled: whether it has its reply, or is no longer processed
    :ivar encodes_structs: replies may hold typed documents, not only plain
        values
    """

    redelivered = False
    shared = False
    returns = 0
    deadline: float | None = None
    settled = False
    encodes_structs = True

    @property
    def unwanted(self) -> bool:
        """Whether it must not be processed, since the daemon pauses."""
        return self.shared and bool(self.listener.paused)

    def is_lost(self) -> bool:
        """Whether its connection is closed: the broker delivers it again."""
        return not self.message._raw_message.channel.is_open

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Send the reply, once.

        :raises MessageUndeliverable: the caller's queue is not there
        """
        if self.orig_msg_id:
            body = self._body(reply, failure)
            self.listener.driver.publish_reply(self.reply_q, body)
        self.settled = True

    def try_reply(self, reply: Any = None, failure: Any = None) -> bool:
        """Send the reply if that cannot block.

        :return: whether it was sent, or no caller waits
        """
        if not self.orig_msg_id:
            return True
        body = self._body(reply, failure)
        sent: bool = self.listener.driver.try_publish(self.reply_q, body)
        self.settled = sent
        return sent

    @property
    def reply_refused(self) -> bool:
        """Whether the caller's queue was missing or full a moment ago."""
        return bool(self.listener.driver.refuses(self.reply_q))

    def heartbeat(self) -> None:
        """Send the caller a heartbeat.

        :raises MessageUndeliverable: the caller's queue is not there
        """
        if self.orig_msg_id:
            body = self._body(None, None, ending=False)
            self.listener.driver.publish_reply(self.reply_q, body)

    def _body(self, reply: Any, failure: Any, ending: bool = True) -> bytes:
        if failure:
            failure = common.serialize_remote_exception(failure)
        message = {
            'result': reply,
            'failure': failure,
            'ending': ending,
            '_msg_id': self.msg_id,
            amqp.UNIQUE_ID: uuid.uuid4().hex,
        }
        return _encode(
            {'oslo.version': '2.0', 'oslo.message': _encode(message).decode()}
        )

    def acknowledge(self) -> None:
        """Let the polling thread acknowledge it with its next poll."""
        self._message_operations_handler.do(self._acknowledge_now)

    def requeue(self) -> None:
        """Let the polling thread hold it for other daemons, or for later.

        It may have been processed, so it counts as delivered before.
        """
        self.settled = self.redelivered = True
        self._message_operations_handler.do(lambda: self.listener.hold(self))

    def _acknowledge_now(self) -> None:
        self.listener.settled(self.unique_id)
        try:
            self.message.acknowledge()
        except Exception as error:
            # The connection is lost, so the broker delivers it again.
            LOG.warning('Acknowledging a request failed: %s', error)

    def give_back(self) -> None:
        """Return it to its queue; called by the polling thread."""
        self.settled = True
        self.listener.settled(None)
        try:
            self.message.requeue()
        except Exception as error:
            LOG.warning('Returning a request to its queue failed: %s', error)


def reply_address(message: Any) -> tuple[str | None, str | None]:
    """Remove the caller's id and reply queue from a message; return them.

    :return: (None, None) for a cast, and if either is not a valid name on the
        broker, so that no reply is possible
    """
    found, queue = message.pop('_msg_id', None), message.pop('_reply_q', None)
    if not (isinstance(found, str) and isinstance(queue, str)):
        return None, None
    return (found, queue) if queues.is_name(queue) else (None, None)


def deadline_of(properties: Any, sent_at: float | None = None) -> float | None:
    """Return when a message that is delivered now expires, monotonic.

    Its time to live is in milliseconds, as text; like the broker's, it starts
    anew in each queue.

    :param sent_at: seconds since the epoch from which the time to live counts
        for a redelivered message, whose caller may have given up and called
        again; None: from now
    """
    text: Any = (properties or {}).get('expiration')
    try:
        lives = int(text) / 1000
    except (TypeError, ValueError, OverflowError):
        return None
    since = 0.0 if sent_at is None else max(0.0, time.time() - sent_at)
    return time.monotonic() + lives - since


# Methods that need no database.
_ALWAYS = frozenset(('ping',))
# How often a paused daemon checks whether others consume, in seconds.
_LOOK_S = 0.5
# The delivery limit of a quorum queue that was declared without any: the
# broker's default since RabbitMQ 4.0. A limit by a policy is invisible here.
_DELIVERY_LIMIT = 20


class SharedQueue:
    """The consumer of a queue, which can be paused.

    :param conn: oslo.messaging's connection that the consumers belong to
    :param name: of the queue
    :param presence: of the queue that daemons consume from while they consume
        from this one
    :param most: how many messages may be held
    :ivar paused: whether nothing is to be consumed
    """

    def __init__(self, conn: Any, name: str, presence: str, most: int) -> None:
        self.paused = False
        self._conn = conn
        self._name = name
        self._presence = presence
        self._most = most
        # (consumer, tag) of oslo.messaging while they are cancelled.
        self._cancelled: list[tuple[Any, int]] = []
        self._held: list[Any] = []
        self._look_at = 0.0

    def delivered(self, message: Any) -> bool:
        """Whether a message that arrived came from this queue."""
        info = message._raw_message.delivery_info or {}
        tag = info.get('consumer_tag')
        # A fetched message has no consumer's tag.
        return tag is None or tag == self._tag()

    def follow(self) -> list[Any]:
        """Stop or start consuming, as ``paused`` says.

        :return: held messages to process now
        """
        self._drop_lost()
        if not self.paused:
            if self._cancelled:
                self._start()
            held, self._held = self._held, []
            return held
        if not self._cancelled:
            self._stop()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            self._look()
        return []

    def admit(self, messages: list[Any]) -> list[Any]:
        """Return the messages to process now; hold the rest."""
        admitted = []
        for message in messages:
            if (
                not self.paused
                or not message.shared
                or _method(message) in _ALWAYS
            ):
                admitted.append(message)
            else:
                self.hold(message)
        return admitted

    def hold(self, message: Any) -> None:
        """Keep a message until it can be processed or returned."""
        self._held.append(message)

    def _consumers(self) -> list[tuple[Any, int]]:
        names = self._name, self._presence
        return self._cancelled or [
            (consumer, tag)
            for consumer, tag in self._conn._consumers.items()
            if consumer.queue_name in names
        ]

    def _own(self) -> tuple[Any, int] | None:
        """Return the consumer of this queue, and its tag."""
        for consumer, tag in self._consumers():
            if consumer.queue_name == self._name:
                return consumer, tag
        return None

    def _tag(self) -> str | None:
        own = self._own()
        return str(own[1]) if own else None

    def _stop(self) -> None:
        """Cancel the consumers, so that a reconnect does not revive them."""
        found = self._consumers()
        if not found or found[0][0].queue_auto_delete:
            # The broker would delete such a queue with its messages.
            return
        self._cancelled = found
        for consumer, tag in found:
            del self._conn._consumers[consumer]
            self._conn._new_tags.discard(tag)
        try:
            for consumer, tag in found:
                consumer.cancel(tag)
        except Exception as error:
            self._reconnect(error)
        LOG.info('Stopped consuming from %s', self._name)

    def _start(self) -> None:
        for consumer, tag in self._cancelled:
            self._conn._consumers[consumer] = tag
            # The connection starts consuming with its next wait for messages.
            self._conn._new_tags.add(tag)
        self._cancelled = []
        LOG.info('Consuming from %s again', self._name)

    def _look(self) -> None:
        """Fetch messages if no daemon consumes, else return held ones."""
        channel = self._conn.channel
        if channel is None or not self._conn.connection.connected:
            return
        try:
            if self._others_consume(channel):
                held, self._held = self._held, []
                for message in held:
                    if self._may_return(message):
                        message.give_back()
                    else:
                        self._held.append(message)
            elif self._cancelled:
                self._fetch(channel)
        except Exception as error:
            self._reconnect(error)

    def _may_return(self, message: Any) -> bool:
        """Whether a message is far from the delivery limit of its queue."""
        config = self._conn.rabbit_quorum_queue_config
        limit = config.delivery_limit or _DELIVERY_LIMIT
        return bool(2 * message.returns < limit)

    def _others_consume(self, channel: Any) -> bool:
        found = channel.queue_declare(self._presence, passive=True)
        own = 0 if self._cancelled else 1
        return bool(found.consumer_count > own)

    def _fetch(self, channel: Any) -> None:
        own = self._own()
        assert own is not None
        for _ in range(self._most - len(self._held)):
            message = channel.basic_get(self._name)
            if message is None:
                return
            own[0]._callback(message)

    def _drop_lost(self) -> None:
        """Drop messages that the broker took back with the connection."""
        kept = []
        for message in self._held:
            if message.is_lost():
                message.listener.settled(None)
            else:
                kept.append(message)
        self._held = kept

    def _reconnect(self, error: Exception) -> None:
        """Let oslo.messaging reconnect after a failure."""
        LOG.info('The queue %s could not be used: %s', self._name, error)
        self._conn._new_tags = set(self._conn._consumers.values())


def _method(message: Any) -> Any:
    body = message.message
    return body.get('method') if isinstance(body, dict) else None


LOG = logging.getLogger(__name__)
_PREFETCH = 128
_CONTEXT = '_context_'
_DEFAULT_EXCHANGE: Any = kombu.Exchange('')
# How long the poller may wait for a message while acknowledgements are due,
# in seconds: usually, and with the prefetch nearly used up.
_POLL_S = 0.02
_SHORT_POLL_S = 0.001
# How often the poller checks whether to pause, in seconds.
_LONG_POLL_S = 0.25
# The pause before an unreachable broker is tried again, in seconds.
_RECONNECT_S = 0.5
# A first connection that takes longer counts as an unreachable broker.
_CONNECT_S = 2.0
# How long the broker may take to confirm a reply of a thread that must not
# block, and for how long such threads stop sending after it took longer, in
# seconds.
_CONFIRM_S = 0.5
_PAUSE_S = 1.0
# Reply queues that are remembered as missing or full.
_MAX_REFUSING = 1024


class LateAckListener(amqpdriver.AMQPListener):  # type: ignore[misc]
    """Consumes requests, and acknowledges them after their work."""

    message_cls = LateAckMessage

    def __init__(self, driver: Any, conn: Any) -> None:
        self._unacknowledged = 0
        self._idle_poll_s = 0.0
        self._shared: SharedQueue | None = None
        self.own_queue = ''
        super().__init__(driver, conn)

    def share(self, queue: str) -> None:
        """Set the queue that other daemons consume from as well."""
        self._shared = SharedQueue(
            self.conn.connection,
            queue,
            queues.presence_queue(queue),
            self.driver.prefetch_size,
        )

    @property
    def paused(self) -> bool:
        """Whether consuming from the shared queue is paused."""
        return self._shared is not None and self._shared.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        if self._shared is not None:
            self._shared.paused = value

    def _follow_pause(self) -> None:
        """Stop or start consuming from the shared queue."""
        for message in self._shared.follow() if self._shared else ():
            message.settled = False
            self.incoming.append(message)

    def hold(self, message: Any) -> None:
        """Take back a request that cannot be processed now.

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
        redelivered = bool(info.get('redelivered'))
        # Redelivered messages are counted in the database first.
        taken.redelivered = redelivered and _method(taken) not in _ALWAYS
        taken.deadline = deadline_of(
            message._raw_message.properties,
            sent_at(context) if redelivered else None,
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

        A lost connection is made again first. If no message arrives for a
        while, the slower base class polls, which consumes anew and checks
        heartbeats.
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
            # The base class returns now and then, so that pauses are noticed.
            brief = self.is_connected() and not self.conn.connection._new_tags
            messages = super().poll(
                timeout or (_SHORT_POLL_S if brief else _LONG_POLL_S),
                batch_size,
                batch_timeout,
            )
        return self._shared.admit(messages) if self._shared else messages

    def _wait(self) -> None:
        """Wait for a message, and acknowledge in time meanwhile."""
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
        """Read from the socket until data arrives."""
        conn = self.conn.connection
        with conn._connection_lock:
            try:
                conn.connection.drain_events(timeout=timeout)
            except TimeoutError:
                return
            except Exception as fault:
                # Let the base class reconnect and consume again.
                conn.record_fault(fault)
                conn._new_tags = set(conn._consumers.values())

    def cleanup(self) -> None:
        """Delete this daemon's own queue, and close the connection."""
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
    """The stock driver with our listener, and connections for replies.

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
        # Without a limit a daemon would consume the whole queue.
        conf.set_default('rabbit_qos_prefetch_count', _PREFETCH, group.name)
        url = copy.copy(url)
        url.transport = 'rabbit'
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._connection_pool.connection_cls = functools.partial(
            RabbitConnection, on_fault=self._record_fault
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
        """Stop consuming from the queues that daemons share."""
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
        """Return why the broker is unreachable; empty: unknown."""
        for listener in self._listeners:
            if found := listener.fault():
                return found
        if self._late_to_connect():
            return self._fault or ', '.join(
                f'{host.hostname}:{host.port}' for host in self._hosts
            )
        return ''

    def _record_fault(self, fault: str) -> None:
        """Keep the reason of a failed connection."""
        self._fault = fault

    def publish_reply(self, queue: str, body: bytes) -> None:
        """Publish a reply; wait for a connection and for the confirmation.

        The reply goes to the default exchange, which needs no declaration.

        :raises MessageUndeliverable: the queue does not exist, or is full and
            refuses the reply
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
        """Publish a reply on a thread that must not block.

        A lost connection is dropped. If the broker takes too long to confirm,
        no reply is published in this way for a moment.

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
        """Mark a queue as missing or full for a moment."""
        if len(self._refusing) >= _MAX_REFUSING:
            self._refusing.clear()
        self._refusing[queue] = time.monotonic() + _PAUSE_S

    def listen(
        self, target: Any, batch_size: int, batch_timeout: float | None
    ) -> Any:
        """Consume the requests of a topic and of a server on it."""
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
