"""Reads copies of the requests of another service, and takes none of them.

The broker copies each request to a queue that is the connection's own. It is
gone with the connection, and drops its oldest messages where nobody reads
them. No other queue and no exchange is declared, and nothing is acknowledged.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from typing import Any

from scheduler_service.bus import wire
from scheduler_service.bus.connection import Connection, Dialler
from scheduler_service.bus.options import RabbitOptions, error_text
from scheduler_service.engine.health import Health
from scheduler_service.worker import Worker

_CAUSE = 'listener'
# Of the queue; milliseconds.
_ARGUMENTS = {
    'x-queue-type': 'classic',
    'x-max-length': 1000,
    'x-message-ttl': 60_000,
    'x-overflow': 'drop-head',
}
# The longest wait before the thread sees that it is to stop.
_TURN_MS = 500
# How long the process may have hung before what came meanwhile is too old.
HUNG_S = 5.0


class Listener(Worker):
    """A thread that reads what is sent to an exchange with a routing key.

    :param take: gets message and context of each request, and must not block
    """

    def __init__(
        self,
        options: RabbitOptions,
        exchange: str,
        key: str,
        take: Callable[[dict[str, Any], dict[str, Any]], None],
        health: Health,
    ) -> None:
        super().__init__('listener', health.thread_ended)
        self._dialler = Dialler(options)
        self._exchange, self._key = exchange, key
        self._take, self._health = take, health

    def _run(self) -> None:
        rounds = 0
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._dialler.dial()) as connection:
                    self._listen(connection)
                    rounds = 0
                    self._health.recover(_CAUSE)
                    self._read(connection)
            except Exception as fault:
                where, why = self._dialler.addresses(), error_text(fault)
                self._health.degrade(
                    _CAUSE,
                    f'requests are not received ({where}: {why})',
                    'Requests are received again',
                )
                self._pause(self._dialler.wait_s(rounds))
                rounds += 1

    def _listen(self, connection: Connection) -> None:
        channel = connection.channel()
        channel.exchange_declare(self._exchange, 'topic', passive=True)
        # The broker names it.
        queue = channel.queue_declare(
            '', exclusive=True, auto_delete=False, arguments=_ARGUMENTS
        ).queue
        channel.queue_bind(queue, self._exchange, self._key)
        channel.basic_consume(queue, no_ack=True, callback=self._on_message)

    def _read(self, connection: Connection) -> None:
        """Read until the thread is to stop.

        :raises Exception: the connection is lost, or its messages are old
        """
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        beat_at = time.monotonic() + connection.heartbeat_s
        while not self._stopping.is_set():
            start = time.monotonic()
            is_due = connection.buffered() or poll.poll(_TURN_MS)
            if time.monotonic() - start > HUNG_S:
                # Closed in order it would still give all that came.
                connection.drop()
                raise TimeoutError('this process hung')
            if is_due:
                connection.read()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + connection.heartbeat_s
                connection.beat()

    def _on_message(self, message: Any) -> None:
        # Who gets the request as well says what is wrong with it.
        with contextlib.suppress(
            LookupError, TypeError, ValueError, RecursionError
        ):
            content = wire.read(message.body, message.properties)
            self._take(content, wire.context_of(content))
