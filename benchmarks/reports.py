"""Memory, and the first decision after reports, as host reports go on.

``python -m benchmarks.reports --hosts 200 --reports 1000000``: each report
has values that no host had before. They go through the checks, the store (a
SQLite file) and the change feed into one snapshot, as in a daemon; after each
round of all hosts a decision is made that reads what changed. ``--columns``
leaves out the store, which takes most of the time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks import common
from scheduler_service.columns import HostTable, Overlay, build_table
from scheduler_service.columns.build import with_hosts
from scheduler_service.filters.hosts import BUILT_IN
from scheduler_service.model import HostReport, documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import change_feed
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.weighers import BUILT_IN as WEIGHERS

_MARKS = 10
_READ = ('ComputeCapabilitiesFilter', 'JsonFilter', 'ImagePropertiesFilter')
_REQUEST = {
    'flavor': {
        'vcpus': 1,
        'memory_mb': 64,
        'extra_specs': {'capabilities:seen': '>= 0'},
    },
    'scheduler_hints': {'query': '["not", ["=", "$cpu_info.serial", "x"]]'},
}


def reports(hosts: int, number: int) -> list[HostReport]:
    """Return a report of each host, with values that were never there."""
    return [
        documents.host_report(
            {
                'host': f'host-{host}',
                'vcpus': 64,
                'memory_mb': 2**20,
                'local_gb': 1000,
                'hypervisor_type': f'type {number} {host}',
                'cpu_info': {'serial': f'{number} {host}'},
                'stats': {'seen': number, 'by': str(host)},
                'metrics': [{'name': 'load', 'value': number + host / 1e6}],
                'pci_device_pools': [{'count': number, 'vendor_id': '8086'}],
            }
        )
        for host in range(hosts)
    ]


class Stored:
    """A snapshot that is brought up to date from a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with store.reading() as conn:
            self._snapshot = load_snapshot(conn)

    @property
    def table(self) -> HostTable:
        return self._snapshot.hosts

    def apply(self, reports: list[HostReport]) -> None:
        """Write reports, and read what they changed."""
        self._store.write(lambda writer: host_rows.report(writer, reports))
        with self._store.reading() as conn:
            self._snapshot = change_feed.refresh(conn, self._snapshot)

    def prune(self) -> None:
        """Delete changes that nobody reads any more."""
        before = time.time() - 60
        self._store.write(
            lambda writer: change_feed.prune(writer.conn, before)
        )


class Columns:
    """A table that reports change directly."""

    def __init__(self) -> None:
        self.table = build_table([])

    def apply(self, reports: list[HostReport]) -> None:
        """Replace the hosts that reported."""
        hosts = list(enumerate(report.as_host() for report in reports))
        self.table = with_hosts(self.table, hosts)

    def prune(self) -> None:
        """There is nothing that could be pruned."""


def measure(
    hosts: int, count: int, target: Stored | Columns
) -> list[dict[str, Any]]:
    """Return memory and times at some ten marks on the way."""
    filters = [kind() for kind in BUILT_IN if kind.name in _READ]
    pipeline = HostPipeline(filters, [k() for k in WEIGHERS], Settings())
    request = documents.request(_REQUEST).with_ids()
    rng = random.Random(7)
    rounds = max(count // hosts, 1)
    every = max(rounds // _MARKS, 1)
    marks, times = [], []
    for number in range(1, rounds + 1):
        target.apply(reports(hosts, number))
        start = time.perf_counter()
        overlay = Overlay(target.table)
        result = pipeline.select(overlay, request, rng)
        times.append(time.perf_counter() - start)
        overlay.forget()
        assert len(result.assignments) == 1
        if number % every == 0 or number == 2:
            target.prune()
            values = target.table.coded['stats'].values
            marks.append(
                {
                    'reports': number * hosts,
                    'memory_mb': round(common.memory_mb(os.getpid()), 1),
                    'first_decision_ms': round(
                        statistics.median(times) * 1000, 2
                    ),
                    'values_kept': len(values),
                }
            )
            times.clear()
            print(marks[-1], file=sys.stderr, flush=True)
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=200)
    parser.add_argument('--reports', type=int, default=1_000_000)
    parser.add_argument('--columns', action='store_true')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    if args.columns:
        marks = measure(args.hosts, args.reports, Columns())
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = Store.connect(f'sqlite:///{folder}/store.sqlite')
            migrate.sync(store)
            marks = measure(args.hosts, args.reports, Stored(store))
            store.dispose()
    first, last = marks[1], marks[-1]
    figures = {
        'marks': marks,
        'memory_grew_percent': round(
            (last['memory_mb'] / first['memory_mb'] - 1) * 100, 1
        ),
        'first_decision_ratio': round(
            last['first_decision_ms'] / first['first_decision_ms'], 2
        ),
    }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
