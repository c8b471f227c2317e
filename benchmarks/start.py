"""From the start of a daemon to its first answer, on PostgreSQL.

``python -m benchmarks.start --hosts 1000 10000 100000`` prints for each size
how long it took to fill the store, how long from the start of the daemon's
process to its first answer, and the daemon's memory then. ``--million`` adds
1,000,000 hosts, once, with the rate of the batch verb on the mix.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from typing import Any

from benchmarks import bulk_load, common, mixes
from benchmarks.measured import BATCH, DaemonSpec, MeasuredDaemon, running
from benchmarks.timing import count
from tests.support import servers

MILLION = 1_000_000
_REQUESTS = 20_000


def measure(
    hosts: int, server_url: str, bus: str, turns: int, seconds: float
) -> dict[str, Any]:
    """Return the figures at one size.

    :param turns: how often to start the daemon; the median is returned
    :param seconds: how long to measure the rate of the batch verb; 0: not
    """
    mix = mixes.cloud(_REQUESTS, hosts)
    document = mixes.inventory(bulk_load.originals(hosts))
    document['server_groups'] = mix.server_groups
    url = common.create_database(server_url)
    with tempfile.TemporaryDirectory() as folder:
        config = common.write_config(pathlib.Path(folder), url, bus)
        filling = common.timed(
            lambda: bulk_load.load(config, url, hosts, document)
        )
    waits, memory = [], []
    figures: dict[str, Any] = {'fill_store_s': round(filling, 1)}
    for turn in range(turns):
        spec = DaemonSpec(f'at_{hosts}_{turn}', url)
        with running(spec, bus, mix.requests) as daemon:
            waits.append(daemon.first_answer_s)
            memory.append(daemon.memory_mb())
            if seconds and turn == 0:
                figures['batch_64_mix'] = _batch(daemon, seconds)
    return {
        **figures,
        'start_to_first_answer_s': round(statistics.median(waits), 2),
        'memory_mb_after_first_answer': round(statistics.median(memory), 1),
    }


def _batch(daemon: MeasuredDaemon, seconds: float) -> dict[str, Any]:
    """Return decisions a second of the mix, and the memory afterwards."""
    daemon.batch()
    start = time.monotonic()
    rates = {
        f'{callers}_callers_a_second': round(
            count(daemon.batch, callers, seconds).rate * BATCH, 1
        )
        for callers in (1, 2, 4)
    }
    return {
        **rates,
        'decisions': daemon.decisions,
        'refused': daemon.refused,
        'seconds': round(time.monotonic() - start, 1),
        'memory_mb_after': round(daemon.memory_mb(), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--hosts', type=int, nargs='*', default=[1000, 10_000, 100_000]
    )
    parser.add_argument(
        '--million', action='store_true', help=f'{MILLION} hosts, too'
    )
    parser.add_argument('--turns', type=int, default=3)
    parser.add_argument(
        '--seconds',
        type=float,
        default=10.0,
        help='how long to measure rates of --million for, each',
    )
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    with (
        servers.postgresql() as (_, server_url),
        servers.rabbitmq() as (_, bus),
    ):
        figures = {
            str(hosts): measure(hosts, server_url, bus, args.turns, 0.0)
            for hosts in args.hosts
        }
        if args.million:
            figures[str(MILLION)] = measure(
                MILLION, server_url, bus, 1, args.seconds
            )
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
