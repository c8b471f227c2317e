"""One daemon and two, at 16 and 64 callers, and while hosts report.

``python -m benchmarks.load`` starts private servers. The callers run in
several processes, so that they do not limit the rate.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import pathlib
import statistics
import tempfile
import threading
import time
from typing import Any

from benchmarks import common
from benchmarks.rpc import CONTEXT, Caller
from benchmarks.timing import rate
from scheduler_service import errors

_PROCESSES = 2
_SPAWN = multiprocessing.get_context('spawn')


def _work(bus: str, threads: int, seconds: float, rates: Any) -> None:
    caller = Caller(bus)
    caller.claimed()
    rates.put(rate(caller.claimed, threads, seconds))


def claimed_a_second(bus: str, callers: int, seconds: float = 8.0) -> int:
    """Return durably claimed decisions a second from so many callers."""
    rates = _SPAWN.Queue()
    running = [
        _SPAWN.Process(
            target=_work, args=(bus, callers // _PROCESSES, seconds, rates)
        )
        for _ in range(_PROCESSES)
    ]
    for one in running:
        one.start()
    total = sum(rates.get() for _ in running)
    for one in running:
        one.join()
    return round(total)


def claim_counts(caller: Caller) -> dict[str, int]:
    """Return claims made and lost, of every daemon that answers a ping."""
    counters: dict[str, Any] = {}
    for _ in range(20):
        status = caller.client.ping(CONTEXT)
        counters[status['server']] = status['counters']
    return {
        'chosen': sum(
            counter.get('requests', {}).get('chosen', 0)
            for counter in counters.values()
        ),
        'lost': sum(
            counter.get('claims_lost', 0) for counter in counters.values()
        ),
    }


def pairs(config: pathlib.Path, bus: str) -> dict[str, Any]:
    """Return the rates of one daemon and of two."""
    figures: dict[str, Any] = {}
    caller = Caller(bus)
    for daemons in (1, 2):
        with contextlib.ExitStack() as stack:
            for _ in range(daemons):
                stack.enter_context(common.daemon(config))
            for callers in (16, 64):
                before = claim_counts(caller)
                figures[f'{daemons} daemons, {callers} callers'] = {
                    'claimed_a_second': claimed_a_second(bus, callers),
                    **_lost_share(before, claim_counts(caller)),
                }
    return figures


def _lost_share(
    before: dict[str, int], after: dict[str, int]
) -> dict[str, float]:
    made = after['chosen'] - before['chosen']
    lost = after['lost'] - before['lost']
    return {'lost_share': round(lost / max(made, 1), 4)}


def paced(caller: Caller, a_second: int, seconds: float) -> list[float]:
    """Call so often a second from 8 threads; return the times, ms."""
    times: list[float] = []
    end = time.monotonic() + seconds

    def call() -> None:
        while time.monotonic() < end:
            start = time.monotonic()
            with contextlib.suppress(errors.SchedulerError):
                caller.claimed()
            spent = time.monotonic() - start
            times.append(spent * 1000)
            time.sleep(max(0.0, 8 / a_second - spent))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def _report(bus: str, hosts: int, every: float, over: Any) -> None:
    """Let hosts report, spread evenly over the time, 20 in a message."""
    client = Caller(bus).client
    number = 0
    while not over.is_set():
        some = [
            {
                'host': f'node-{(number + at) % hosts:06d}',
                'memory_mb_used': (number + at) % 30_000,
                'num_io_ops': at % 3,
            }
            for at in range(20)
        ]
        client.cast(CONTEXT, 'update_host_state', hosts=some)
        number += 20
        time.sleep(every * 20 / hosts)


def reporting(bus: str, hosts: int) -> dict[str, Any]:
    """Return p50 at 100 requests a second, with and without reports."""
    caller = Caller(bus)
    paced(caller, 100, 3)
    without = statistics.median(paced(caller, 100, 12))
    over = _SPAWN.Event()
    reporter = _SPAWN.Process(target=_report, args=(bus, hosts, 60.0, over))
    reporter.start()
    time.sleep(4)
    beside = statistics.median(paced(caller, 100, 12))
    over.set()
    reporter.join()
    counters = caller.client.ping(CONTEXT)['counters']
    return {
        'p50_ms_without': round(without, 2),
        'p50_ms_with': round(beside, 2),
        'ratio': round(beside / without, 2),
        'reports_taken': counters['host_reports'],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    with (
        common.database(None) as database,
        common.bus(None) as bus,
        tempfile.TemporaryDirectory() as folder,
    ):
        place = pathlib.Path(folder)
        config = common.write_config(place, database, bus)
        common.import_inventory(config, common.inventory(args.hosts))
        figures = pairs(config, bus)
        with common.daemon(config):
            figures['reporting'] = reporting(bus, args.hosts)
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
