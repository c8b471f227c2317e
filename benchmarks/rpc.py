"""A decision over RPC beside a call that does nothing on the same bus.

``python -m benchmarks.rpc --hosts 10000 --json`` starts a private RabbitMQ
and PostgreSQL, one daemon and one stock server, and takes turns between
them, so that what the machine does besides falls on all alike.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common
from scheduler_service import conf as options
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient

import oslo_messaging  # isort: skip

CONTEXT = {'user_id': 'bench', 'project_id': 'p', 'roles': ['member']}


class Caller:
    """The calls that are compared."""

    def __init__(self, transport_url: str) -> None:
        conf = options.new_config()
        options.parse(
            conf, [], default_config_files=[], default_config_dirs=[]
        )
        bus = transport.for_client(conf, transport_url)
        self.client = SchedulerClient(conf, bus)
        target = oslo_messaging.Target(topic='nothing', version='1.0')
        self._nothing = oslo_messaging.get_rpc_client(bus, target)

    def nothing(self) -> None:
        """Call the stock server."""
        self._nothing.call({}, 'nothing', request=common.request())

    def claimed(self) -> None:
        """Have one instance placed and claimed."""
        self.client.select_destinations(CONTEXT, common.request())

    def chosen(self) -> None:
        """Have one instance placed, not claimed."""
        self.client.select_destinations(CONTEXT, common.request(), claim=False)

    def many(self, count: int) -> None:
        """Have many instances placed and claimed by one message."""
        one = {'select_destinations': common.request()}
        answers = self.client.schedule_many(CONTEXT, [one] * count)
        assert all('result' in answer for answer in answers), answers[0]


def in_turns(
    calls: dict[str, Callable[[], None]], turns: int
) -> dict[str, list[float]]:
    """Return the times of each call, milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            times[name].append(common.timed(call) * 1000)
    return times


def rate(call: Callable[[], None], threads: int, seconds: float) -> float:
    """Return calls a second from several threads."""
    done = [0] * threads
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        while time.monotonic() < end:
            call()
            done[number] += 1

    running = [
        threading.Thread(target=work, args=(n,)) for n in range(threads)
    ]
    start = time.monotonic()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(done) / (time.monotonic() - start)


def measure(caller: Caller, turns: int, callers: int) -> dict[str, Any]:
    """Return the figures of one run."""
    calls = {
        'nothing': caller.nothing,
        'claimed': caller.claimed,
        'chosen': caller.chosen,
    }
    in_turns(calls, max(20, turns // 10))
    times = in_turns(calls, turns)
    p50 = {name: statistics.median(some) for name, some in times.items()}
    rates = {
        name: rate(call, callers, 5) for name, call in list(calls.items())[:2]
    }
    caller.many(64)
    batch = statistics.median(
        common.timed(lambda: caller.many(64)) for _ in range(30)
    )
    batches = {
        f'batch_64_{several}_callers': round(
            rate(lambda: caller.many(64), several, 5) * 64
        )
        for several in (2, 4)
    }
    return {
        'p50_ms': {name: round(value, 3) for name, value in p50.items()},
        'p99_ms': {
            name: round(statistics.quantiles(some, n=100)[98], 3)
            for name, some in times.items()
        },
        'claimed_to_nothing': round(p50['claimed'] / p50['nothing'], 2),
        'chosen_to_nothing': round(p50['chosen'] / p50['nothing'], 2),
        f'rate_{callers}_callers': {
            name: round(value) for name, value in rates.items()
        },
        'rate_claimed_to_nothing': round(
            rates['claimed'] / rates['nothing'], 2
        ),
        'batch_64_decisions_a_second': round(64 / batch),
        **batches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--database', help='URL of an empty database')
    parser.add_argument('--transport', help='URL of a RabbitMQ')
    parser.add_argument('--turns', type=int, default=500)
    parser.add_argument('--callers', type=int, default=16)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    with (
        common.database(args.database) as database,
        common.bus(args.transport) as bus,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = common.write_config(pathlib.Path(folder), database, bus)
        document = pathlib.Path(folder) / 'inventory.json'
        document.write_text(json.dumps(common.inventory(args.hosts)))
        common.manage(config, 'db', 'sync')
        common.manage(config, 'inventory', 'import', str(document))
        with (
            common.daemon(config) as running,
            common.process('benchmarks.noop_server', bus, ready='Ready:'),
        ):
            figures = {
                'hosts': args.hosts,
                'database': database.split(':', 1)[0],
                'daemon_memory_mb_at_start': round(
                    common.memory_mb(running.pid)
                ),
                **measure(Caller(bus), args.turns, args.callers),
                'daemon_memory_mb_at_end': round(
                    common.memory_mb(running.pid)
                ),
            }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
