"""How long publishing takes beside a shadow, and beside one that hangs.

``python -m benchmarks.shadow --json`` starts a private RabbitMQ. Requests are
published one after the other, each confirmed by the broker, to a queue of each
kind that the compute service has: alone, with a shadow that reads copies, and
with one that is stopped and reads none. All take turns, and each is compared
with the turn alone of its round, so that whatever else the machine does falls
on all alike. A second turn alone in each round says how much of a ratio is
noise. That every request is in the real queue is checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Iterable
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
SIDES = 'alone', 'alone again', 'read', 'stopped'
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
        if not side.startswith('alone'):
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
    """Return medians of the turns, by kind and side.

    ``p50_ms`` and ``p99_ms``, and the ratio of the latter to that of the turn
    alone: its median, and its quartiles.
    """
    found: dict[str, dict[str, float]] = {}
    with servers.rabbitmq() as (server, base):
        for kind in KINDS:
            beside = Beside(server, base, kind)
            turns: dict[str, list[list[float]]] = {side: [] for side in SIDES}
            beside.publish('alone', number)
            for turn in range(rounds):
                first = turn % len(SIDES)
                for side in SIDES[first:] + SIDES[:first]:
                    times = beside.publish(side, number)
                    turns[side].append(statistics.quantiles(times, n=100))
            beside.close()
            for side, cuts in turns.items():
                pairs = zip(cuts, turns['alone'], strict=True)
                ratios = [mine[98] / alone[98] for mine, alone in pairs]
                low, middle, high = statistics.quantiles(ratios, n=4)
                found[f'{kind}, {side}'] = {
                    'p50_ms': _median_ms(each[49] for each in cuts),
                    'p99_ms': _median_ms(each[98] for each in cuts),
                    'p99_ratio': round(middle, 3),
                    'from': round(low, 3),
                    'to': round(high, 3),
                }
    return found


def _median_ms(seconds: Iterable[float]) -> float:
    return round(1000 * statistics.median(seconds), 3)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--number', type=int, default=2000)
    parser.add_argument('--rounds', type=int, default=12)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    common.show(measure(args.number, args.rounds), args.json)


if __name__ == '__main__':
    main()
