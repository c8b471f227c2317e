"""How long publishing takes beside a shadow, and beside one that hangs.

``python -m benchmarks.shadow --json`` starts a private RabbitMQ. Requests are
published one after the other, each confirmed by the broker, to a queue of each
kind that the compute service has: alone, with a shadow that reads copies, and
with one that is stopped and reads none. The three take turns, so that whatever
else the machine does falls on all alike. That every request is in the real
queue is checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
from typing import Any

import kombu

from benchmarks import common
from scheduler_service.bus.listener import Listener
from scheduler_service.engine.health import Health
from scheduler_service.rpc import transport
from tests.support import servers
from tests.support.services import new_conf
from tests.support.waiting import wait_until

EXCHANGE, TOPIC = 'nova', 'scheduler'
KINDS: dict[str, dict[str, str]] = {
    'classic': {},
    'quorum': {'x-queue-type': 'quorum'},
}
SIDES = 'alone', 'read', 'stopped'
BODY = b'x' * 6000


def listen(url: str, count: Any) -> None:
    """Read copies until the process is ended."""

    def take(message: Any, context: Any) -> None:
        with count.get_lock():
            count.value += 1

    settings = transport.rabbit(new_conf(), url)
    assert settings is not None
    Listener(settings, EXCHANGE, TOPIC, take, Health()).start()
    signal.pause()


class Beside:
    """A queue of the compute service, and what else gets its requests."""

    def __init__(self, server: Any, base: str, kind: str) -> None:
        self._server = server
        self._url = servers.new_vhost(server, base)
        address = self._url.replace('rabbit://', 'amqp://')
        options = {'confirm_publish': True}
        self._conn = kombu.Connection(address, transport_options=options)
        self._queue = kombu.Queue(
            TOPIC, kombu.Exchange(EXCHANGE, 'topic', durable=True), TOPIC,
            durable=True, queue_arguments=KINDS[kind],
        )(self._conn.default_channel)  # fmt: skip
        self._queue.declare()
        self._producer = self._conn.Producer()

    def publish(self, side: str, number: int) -> list[float]:
        """Publish requests; return how long each took, in seconds."""
        process = None
        if side != 'alone':
            context = multiprocessing.get_context('spawn')
            count = context.Value('q', 0)
            process = context.Process(target=listen, args=(self._url, count))
            process.start()
            wait_until(lambda: len(self._names()) == 2)
            if side == 'stopped':
                os.kill(process.pid or 0, signal.SIGSTOP)
        taken = []
        for _ in range(number):
            start = time.perf_counter()
            self._producer.publish(
                BODY, exchange=EXCHANGE, routing_key=TOPIC, delivery_mode=2
            )
            taken.append(time.perf_counter() - start)
        wait_until(lambda: self._count() == number)
        self._queue.purge()
        if process is not None:
            process.kill()
            process.join()
            wait_until(lambda: len(self._names()) == 1)
        return taken

    def _names(self) -> set[str]:
        return servers.names_in(self._server, self._url, 'queues')

    def _count(self) -> int:
        declared = self._queue.queue_declare(passive=True)
        return int(declared.message_count)

    def close(self) -> None:
        """Close the connection."""
        self._conn.release()


def measure(number: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return p50 and p99 in milliseconds, by kind and side."""
    found: dict[str, dict[str, float]] = {}
    with servers.rabbitmq() as (server, base):
        for kind in KINDS:
            beside = Beside(server, base, kind)
            taken: dict[str, list[float]] = {side: [] for side in SIDES}
            beside.publish('alone', number)
            for _ in range(rounds):
                for side in SIDES:
                    taken[side] += beside.publish(side, number)
            beside.close()
            for side, times in taken.items():
                cuts = statistics.quantiles(times, n=100)
                found[f'{kind}, {side}'] = {
                    'p50_ms': round(1000 * cuts[49], 3),
                    'p99_ms': round(1000 * cuts[98], 3),
                }
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--number', type=int, default=2000)
    parser.add_argument('--rounds', type=int, default=8)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    common.show(measure(args.number, args.rounds), args.json)


if __name__ == '__main__':
    main()
