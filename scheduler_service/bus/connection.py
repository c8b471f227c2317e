"""A connection to a node of RabbitMQ: dialling, declaring, reading.

One thread at a time uses a connection. Each attempt to connect has an object
of its own, so that a certificate is checked against the name of its node.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import select
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kombu
import oslo_messaging
from amqp.exceptions import (
    AccessRefused,
    NotAllowed,
    NotFound,
    PreconditionFailed,
)

from scheduler_service.bus import options as bus_options
from scheduler_service.bus.options import RabbitOptions, error_text

LOG = logging.getLogger(__name__)
# How long a node may take for the next byte, at most, in seconds.
_IO_S = 10.0
# How long it may take to close TLS, in seconds.
_CLOSE_S = 0.5
# The longest wait before the nodes are tried again, in seconds: a broker that
# is back is noticed in time, whatever the options say.
_LONGEST_WAIT_S = 5.0
# Frames that are read before anything else is done.
_MOST_FRAMES = 256
_NOT_DURABLE = "inequivalent arg 'durable'"


class Connection:
    """An open connection.

    :param raw: the connection of the library for AMQP
    :param host: the node
    :param rate: heartbeats in the time after which a silent node is dead
    :ivar blocked: whether the broker takes no messages, for want of memory
    :ivar fileno: returns the descriptor of its socket
    :ivar buffered: returns how many bytes were received and not read
    :ivar heartbeat_s: seconds between heartbeats; infinite: none are sent
    """

    def __init__(self, raw: Any, host: str, rate: int) -> None:
        self.host = host
        self.blocked = False
        self._raw = raw
        raw.on_blocked = self._note_blocked
        raw.on_unblocked = self._note_unblocked
        self._rate = rate
        self._socket = raw.sock
        self._socket.settimeout(min(_IO_S, raw.heartbeat or _IO_S))
        self.fileno = self._socket.fileno
        # TLS may have read more bytes than it was called for.
        self.buffered: Callable[[], int] = getattr(
            self._socket, 'pending', lambda: 0
        )
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        interval = raw.heartbeat / max(rate, 1) / 2
        self.heartbeat_s: float = interval or math.inf

    def _note_blocked(self, reason: str) -> None:
        self.blocked = True
        LOG.error('The broker has blocked the connection: %s', reason)

    def _note_unblocked(self) -> None:
        self.blocked = False
        LOG.info('The broker has unblocked the connection')

    def read(self) -> None:
        """Handle the frames that have arrived, or one frame.

        :raises Exception: the connection or a channel is closed
        """
        for _ in range(_MOST_FRAMES):
            self._raw.blocking_read()
            if not (self._readable.poll(0) or self.buffered()):
                return

    def beat(self) -> None:
        """Send a heartbeat if that is due.

        :raises Exception: the node is silent for too long
        """
        self._raw.heartbeat_tick(self._rate)

    def channel(self) -> Any:
        """Open a channel, whose messages have bodies of bytes."""
        channel = self._raw.channel()
        channel.auto_decode = False
        return channel

    def declare(self, queue: kombu.Queue, keys: Sequence[str] = ()) -> None:
        """Declare a queue and its exchange, and bind it.

        :param keys: routing keys beside the queue's
        :raises PreconditionFailed: either exists, and is of another kind
        """
        self.declare_alone(queue.exchange)
        try:
            self.declare_alone(queue)
        except NotFound:
            # The queue is not durable, and on a node that is down.
            with self._raw.channel() as channel:
                channel.queue_delete(queue.name)
            self.declare_alone(queue)
        with self._raw.channel() as channel:
            bound = queue(channel)
            bound.queue_bind()
            for key in keys:
                bound.bind_to(bound.exchange, key)

    def declare_alone(self, entity: kombu.Queue | kombu.Exchange) -> None:
        """Declare a queue or an exchange, or use an existing entity.

        Another service may have declared a shared exchange, durable or not.

        :raises PreconditionFailed: that is of another kind otherwise
        """
        for durable in (entity.durable, not entity.durable):
            try:
                # A refusal closes the channel.
                with self._raw.channel() as channel:
                    bound = entity(channel)
                    bound.durable = durable
                    if isinstance(entity, kombu.Queue):
                        bound.queue_declare()
                    else:
                        bound.declare()
            except PreconditionFailed as refusal:
                is_last = durable != entity.durable
                if is_last or _NOT_DURABLE not in str(refusal):
                    raise
            else:
                return

    def find(self, entity: kombu.Queue | kombu.Exchange) -> Any:
        """Return the declaration of a queue or an exchange; None: absent."""
        try:
            with self._raw.channel() as channel:
                if isinstance(entity, kombu.Queue):
                    return channel.queue_declare(entity.name, passive=True)
                entity(channel).declare(passive=True)
                return entity
        except NotFound:
            return None

    def close(self) -> None:
        """Close it, and wait until the node has closed it as well."""
        try:
            self._raw.close()
        finally:
            self.drop()

    def drop(self) -> None:
        """Close its socket."""
        with contextlib.suppress(OSError):
            # TLS waits for the end of the other side, which may be dead.
            self._socket.settimeout(_CLOSE_S)
        self._raw.client = None
        self._raw.collect()


class Dialler:
    """Connects to one node of the broker after the other.

    :ivar count: of nodes
    :ivar fault: address and reason of the last failure; empty after a success
    """

    def __init__(self, options: RabbitOptions) -> None:
        self._options = options
        self._hosts = list(options.hosts)
        self.count = len(self._hosts)
        random.shuffle(self._hosts)
        self._next = 0
        self.fault = ''

    def addresses(self) -> str:
        """Return the addresses of all nodes."""
        return ', '.join(map(_address, self._options.hosts))

    def note(self, host: str, fault: BaseException) -> None:
        """Keep why a connection failed."""
        self.fault = f'{host}: {error_text(fault)}'
        # The daemon's health logs it, once.
        LOG.debug('A node of the broker does not answer: %s', self.fault)

    def dial(self) -> Connection:
        """Connect to the next node.

        :raises Exception: it does not answer, or refuses; ``fault`` has why
        """
        if self._next >= len(self._hosts):
            self._next = 0
            if self._options.kombu_failover_strategy == 'shuffle':
                random.shuffle(self._hosts)
        host = self._hosts[self._next]
        self._next += 1
        try:
            connection = self._connect(host)
        except Exception as fault:
            self.note(_address(host), fault)
            raise
        self.fault = ''
        return connection

    def _connect(self, host: Any) -> Connection:
        options = self._options
        name = host.hostname or 'localhost'
        silence_s = options.heartbeat_timeout_threshold or 60
        raw = kombu.Connection(
            hostname=f'[{name}]' if ':' in name else name,
            port=host.port or 5672,
            userid=host.username or None,
            password=host.password or None,
            virtual_host=options.virtual_host,
            transport='amqp',
            ssl=options.tls(name),
            login_method=options.rabbit_login_method,
            heartbeat=options.heartbeat_timeout_threshold,
            transport_options={
                'client_properties': {
                    'connection_name': (
                        f'scheduler-service:{os.getpid()}:{uuid.uuid4()}'
                    )
                },
                'socket_settings': {socket.TCP_USER_TIMEOUT: 1000 * silence_s},
            },
        ).transport.establish_connection()
        return Connection(raw, _address(host), options.heartbeat_rate)

    def wait_s(self, rounds: int) -> float:
        """Return how long to wait after all nodes failed, in seconds.

        :param rounds: how often they did
        """
        options = self._options
        wait = options.rabbit_retry_interval
        wait += rounds * options.rabbit_retry_backoff
        return float(min(wait, options.rabbit_interval_max, _LONGEST_WAIT_S))


def _address(host: Any) -> str:
    return f'{host.hostname or "localhost"}:{host.port or 5672}'


@contextlib.contextmanager
def connected(options: RabbitOptions) -> Iterator[Connection]:
    """Give a connection to a node; each node is tried once.

    :raises ConfigurationError: the broker refuses the login, or has a queue
        or an exchange of another kind than is declared
    :raises MessageDeliveryFailure: no node accepts a connection
    """
    dialler = Dialler(options)
    for left in reversed(range(dialler.count)):
        try:
            connection = dialler.dial()
            break
        except (AccessRefused, NotAllowed) as refusal:
            raise bus_options.refused(refusal) from None
        except Exception as fault:
            if not left:
                raise oslo_messaging.MessageDeliveryFailure(
                    error_text(fault)
                ) from fault
    try:
        yield connection
    except PreconditionFailed as refusal:
        raise bus_options.refused(refusal) from None
    finally:
        with contextlib.suppress(Exception):
            connection.close()
