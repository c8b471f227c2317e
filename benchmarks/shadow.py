"""How long publishing takes beside a shadow, and beside one that hangs.

``python -m benchmarks.shadow --json`` starts a private RabbitMQ. Requests are
published one after the other, each confirmed by the broker, to a queue of each
kind that the compute service has: alone, with a shadow that reads copies, and
with one that is stopped and reads none. All take turns of a hundred requests,
so that whatever else the machine does falls on all alike; a second one alone
says how much of a ratio is noise. That every request is in the real queue is
checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
import uuid
from collections.abc import Iterable
from typing import Any

import kombu

from benchmarks import common
from scheduler_service.bus.listener import Listener
from scheduler_service.engine.health import Health
from scheduler_service.rpc import transport
from tests.support import servers
from tests.support.compute import request_body
from tests.support.services import new_conf
from tests.support.waiting import wait_until

EXCHANGE, TOPIC = 'nova', 'scheduler'
KINDS: dict[str, dict[str, str]] = {
    'classic': {},
    'quorum': {'x-queue-type': 'quorum'},
}
SIDES = 'alone', 'alone again', 'read', 'stopped'
AT_ONCE = 100


def listen(url: str) -> None:
    """Read copies until the process is ended."""
    settings = transport.rabbit(new_conf(), url)
    assert settings is not None
    Listener(
        settings, EXCHANGE, TOPIC, lambda *request: None, Health()
    ).start()
    signal.pause()


class Beside:
    """A queue of the compute service, and what else gets its requests."""

    def __init__(self, server: Any, base: str, kind: str, side: str) -> None:
        url = servers.new_vhost(server, base)
        address = url.replace('rabbit://', 'amqp://')
        options = {'confirm_publish': True}
        self._conn = kombu.Connection(address, transport_options=options)
        self._queue = kombu.Queue(
            TOPIC, kombu.Exchange(EXCHANGE, 'topic', durable=True), TOPIC,
            durable=True, queue_arguments=KINDS[kind],
        )(self._conn.default_channel)  # fmt: skip
        self._queue.declare()
        self._producer = self._conn.Producer()
        self._body = request_body(str(uuid.uuid4()), 'replies')
        self._process: Any = None
        if not side.startswith('alone'):
            context = multiprocessing.get_context('spawn')
            self._process = context.Process(target=listen, args=(url,))
            self._process.start()
            wait_until(
                lambda: len(servers.names_in(server, url, 'queues')) > 1
            )
        if side == 'stopped':
            os.kill(self._process.pid, signal.SIGSTOP)

    def publish(self) -> list[float]:
        """Publish requests; return how long each took, in seconds."""
        taken = []
        for _ in range(AT_ONCE):
            start = time.perf_counter()
            self._producer.publish(
                self._body, exchange=EXCHANGE, routing_key=TOPIC,
                delivery_mode=2, content_type='application/json',
                content_encoding='utf-8',
            )  # fmt: skip
            taken.append(time.perf_counter() - start)
        wait_until(lambda: self._count() == AT_ONCE)
        self._queue.purge()
        return taken

    def _count(self) -> int:
        declared = self._queue.queue_declare(passive=True)
        return int(declared.message_count)

    def close(self) -> None:
        """Close the connection, and end the shadow."""
        self._conn.release()
        if self._process is not None:
            self._process.kill()
            self._process.join()


def measure(rounds: int, turns: int) -> dict[str, dict[str, float]]:
    """Return medians of the rounds, by kind and side.

    ``p50_ms`` and ``p99_ms``, and the ratio of the latter to that of the one
    alone: its median, and its quartiles.

    :param turns: of each side in a round
    """
    found: dict[str, dict[str, float]] = {}
    with servers.rabbitmq() as (server, base):
        for kind in KINDS:
            cuts: dict[str, list[list[float]]] = {side: [] for side in SIDES}
            for _ in range(rounds):
                # The broker closes the connection of one that hangs for long.
                sides = {
                    side: Beside(server, base, kind, side) for side in SIDES
                }
                times: dict[str, list[float]] = {side: [] for side in SIDES}
                for turn in range(turns):
                    first = turn % len(SIDES)
                    for side in SIDES[first:] + SIDES[:first]:
                        times[side] += sides[side].publish()
                for side, taken in times.items():
                    cuts[side].append(statistics.quantiles(taken, n=100))
                    sides[side].close()
            for side, mine in cuts.items():
                pairs = zip(mine, cuts['alone'], strict=True)
                ratios = [own[98] / alone[98] for own, alone in pairs]
                low, middle, high = statistics.quantiles(ratios, n=4)
                found[f'{kind}, {side}'] = {
                    'p50_ms': _median_ms(each[49] for each in mine),
                    'p99_ms': _median_ms(each[98] for each in mine),
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
    parser.add_argument('--rounds', type=int, default=12)
    parser.add_argument('--turns', type=int, default=40)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    common.show(measure(args.rounds, args.turns), args.json)


if __name__ == '__main__':
    main()
