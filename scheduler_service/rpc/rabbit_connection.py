"""The stock connection to RabbitMQ, which tells of queues that refuse.

It belongs to the thread that took it from the driver.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import oslo_messaging
from amqp import basic_message
from amqp.exceptions import MessageNacked
from oslo_messaging._drivers import impl_rabbit as stock

LOG = logging.getLogger(__name__)


def _on_failure(fault: Exception, interval: float) -> None:
    LOG.debug('A node of the broker does not answer: %s', fault)


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

    :cvar fault: why the broker could not be reached the last time, and
        where; empty if it could
    """

    fault = ''

    def ensure_connection(self) -> None:
        """Connect anew; the stock code keeps one whose node is silent."""
        self.connection.collect()
        super().ensure_connection()

    def reconnect(self) -> bool:
        """Try each node of the broker; return whether one answered.

        While the stock code consumes it passes over nodes when it reconnects:
        of three it may try the same silent one for ever.
        """
        with self._connection_lock:
            self.connection.collect()
            try:
                self.connection.ensure_connection(
                    errback=_on_failure,
                    max_retries=len(self.connection.alt),
                    interval_start=self.interval_start,
                    interval_step=self.interval_stepping,
                    interval_max=self.interval_max,
                )
                self._set_current_channel(self.connection.channel())
                self.set_transport_socket_timeout()
            except Exception as fault:
                # The daemon's health logs it, once.
                where = f'{self.connection.hostname}:{self.connection.port}'
                self.fault = f'{where}: {fault}'
                LOG.debug('No node of the broker answers: %s', self.fault)
                return False
            self.fault = ''
            self._new_tags = set(self._consumers.values())
        return True

    def _publish(
        self, exchange: Any, msg: Any, routing_key: Any = None, *how: Any
    ) -> None:
        with refusals(routing_key):
            super()._publish(exchange, msg, routing_key, *how)
