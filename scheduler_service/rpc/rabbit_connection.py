"""The stock connection to RabbitMQ, which tells of queues that refuse.

It belongs to the thread that took it from the driver.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging
from amqp import basic_message
from amqp.exceptions import AMQPError, MessageNacked
from oslo_messaging._drivers import impl_rabbit as stock

LOG = logging.getLogger(__name__)


# What an address may have before the name of the server.
_USER_INFO = re.compile(r'//[^/\s]*@')


def words(fault: BaseException) -> str:
    """Return what an error says on one line, without passwords."""
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
    """Have a full queue's refusal raise an error that ends the sending.

    The stock code takes it for a lost connection, and sends again for ever.

    :raises MessageUndeliverable: the queue is full, and refuses
    """
    try:
        yield
    except MessageNacked as refusal:
        raise oslo_messaging.MessageUndeliverable(
            refusal, '', queue, None
        ) from None


class Connection(stock.Connection):  # type: ignore[misc]
    """The stock connection, which tells of queues that refuse a message.

    It also leaves a node of the broker that hangs for another one.

    :param on_fault: called with each fault; the first connection is made
        before anybody has the object
    :ivar fault: why the broker could not be reached the last time, and
        where; empty if it could
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
        """The node of the broker that is used, or was tried last."""
        return f'{self.connection.hostname}:{self.connection.port}'

    def record_fault(self, fault: BaseException, *rest: Any) -> None:
        """Keep why the connection was lost, or could not be made."""
        self.fault = f'{self.address}: {words(fault)}'
        self._on_fault(self.fault)
        # The daemon's health logs it, once.
        LOG.debug('A node of the broker does not answer: %s', self.fault)

    def ensure_connection(self) -> None:
        """Connect anew; the stock code keeps one whose node is silent."""
        self.connection.collect()
        self._set_current_channel(None)
        self._connect(self.max_retries)

    def _connect(self, max_retries: int | None) -> None:
        """Connect to a node of the broker; keep why those before failed."""
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
        """Run a method as the stock code does; keep why it had to connect."""

        def on_error(fault: BaseException) -> None:
            # Without a text it only says what is known: see the stock code.
            if not (_is_mute(fault) and self.fault):
                self.record_fault(fault)
            if recoverable_error_callback:
                recoverable_error_callback(fault)

        return super().ensure(method, retry, on_error, *args, **more)

    def reconnect(self) -> bool:
        """Try each node of the broker; return whether one answered.

        While the stock code consumes it passes over nodes when it reconnects:
        of three it may try the same silent one for ever.
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
