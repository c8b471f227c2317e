"""A decision over RPC beside an empty call on the same bus.

``python -m benchmarks.rpc --hosts 10000 --json`` starts a private RabbitMQ
and PostgreSQL, one daemon and one stock server that does no work. The calls
alternate, so that whatever else the machine does falls on all alike. Every
request is the same one; ``benchmarks.mix`` asks a mix of requests.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
from typing import Any

from benchmarks import common
from benchmarks.timing import in_turns, rate
from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import TOPIC, SchedulerClient

import oslo_messaging  # isort: skip

CONTEXT = {'user_id': 'bench', 'project_id': 'p', 'roles': ['admin']}


class Caller:
    """The calls that are compared."""

    def __init__(
        self,
        transport_url: str,
        topic: str = TOPIC,
        timeout: float | None = None,
    ) -> None:
        conf = adapters.new_config()
        options.parse(
            conf, [], default_config_files=[], default_config_dirs=[]
        )
        self._bus = transport.for_client(conf, transport_url)
        self.client = SchedulerClient(conf, self._bus, topic, timeout=timeout)
        target = oslo_messaging.Target(topic='noop', version='1.0')
        self._noop = oslo_messaging.get_rpc_client(self._bus, target)

    def close(self) -> None:
        """Close the connections, before the broker stops."""
        self._bus.cleanup()

    def noop(self, request: dict[str, Any] | None = None) -> None:
        """Call the stock server, with a request as the argument."""
        self._noop.call({}, 'noop', request=request or common.request())

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


def measure(caller: Caller, turns: int, callers: int) -> dict[str, Any]:
    """Return the figures of one run."""
    calls = {
        'noop': caller.noop,
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
        'claimed_to_noop': round(p50['claimed'] / p50['noop'], 2),
        'chosen_to_noop': round(p50['chosen'] / p50['noop'], 2),
        f'rate_{callers}_callers': {
            name: round(value) for name, value in rates.items()
        },
        'rate_claimed_to_noop': round(rates['claimed'] / rates['noop'], 2),
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
        common.import_inventory(config, common.inventory(args.hosts))
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
