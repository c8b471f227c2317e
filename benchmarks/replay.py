"""How long a replay of one configuration takes, beside choosing alone.

``python -m benchmarks.replay --hosts 10000 --requests 100000`` records a
cloud's mix of requests as a daemon does, of which every second instance is
released later. Then a process of its own decides them again by the same
configuration. *choosing* is what it spends in ``HostPipeline.select``, and
*of choosing* all of it as a multiple of that, both in processor time.

``--daemons 2 --hosts 2000 --seconds 120`` has real daemons decide the mix on
PostgreSQL, or with ``--one`` one request over and over, and prints how many
steps by the recorded configuration are as they really were, and each other
one with its cause.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import common, mixes
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.cmd.commands import replay
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.changes import Release
from scheduler_service.engine.health import Health
from scheduler_service.engine.journal import Decided, Ended, Journal
from scheduler_service.factory import engine_config
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.store.connection import Store
from scheduler_service.store.workers.decision_recorder import RecordingWriter
from scheduler_service.testing import table as build_table
from tests.support import clouds, servers
from tests.support.documents import CONTEXT

# Requests between two looks of the thread that records, and in a claim.
_PER_LOOK, _PER_CLAIM = 200, 32
# How many instances there are before the first ones are released.
_LIVE = 20_000
# Likewise for each of the callers of daemons.
_CALLERS, _LIVE_OF_CALLER = 6, 1000


class Recorder:
    """Decides requests, and records them as a daemon does.

    :param most: how many instances there are before some are released
    """

    def __init__(
        self, store: Store, table: HostTable, conf: Any, most: int = _LIVE
    ) -> None:
        self._most = most
        self._store, self._journal = store, Journal()
        self._journal.keep(True)
        self._writer = RecordingWriter(
            self._journal, lambda: ('d', '1', 'c'), Health()
        )
        self._journal.checkpoint(table, follows=False)
        self._overlay = Overlay(table)
        self._pipeline = engine_config(conf).hosts
        self._rng = random.Random(1)
        self._claimed = 0
        self._live = collections.deque[Any]()
        self.look()

    def look(self) -> None:
        """Store what there is."""
        self._writer.gather()
        while self._writer:
            self._writer.stored(self._store.write(self._writer.store))

    def decide(self, number: int, document: dict[str, Any]) -> list[int]:
        """Decide the request of a number; return the rows of its hosts."""
        request = documents.checked_request(document).with_ids(str(number))
        made, placed, error, reasons = [], {}, '', {}
        try:
            result = self._pipeline.select(
                self._overlay, request, self._rng, placed=placed
            )
            made, reasons = result.assignments, result.reasons
        except errors.NoValidHost as fault:
            error = fault.name
        self._journal.put(
            Decided(
                request, made or [*placed.values()], 0, None, None, 0, error,
                reasons,
            )
        )  # fmt: skip
        self._claimed += len(made)
        self._live += [(each, request.instance_group) for each in made]
        if number % _PER_CLAIM == 0:
            self._journal.apply(Ended(self._claimed), self._overlay)
            self._claimed = 0
            while len(self._live) > self._most:
                self._release()
        if number % _PER_LOOK == 0:
            self.look()
        return [each.row for each in made]

    def _release(self) -> None:
        """Release the oldest instance, and keep the next for good."""
        made, group = self._live.popleft()
        self._live.popleft()
        placed, amounts = made.placed, {made.host_id: dict(made.amounts)}
        release = Release(
            [(made.uuid, placed.host, placed.node, amounts)],
            [],
            [(group, made.uuid)] if group else [],
        )
        self._journal.apply(release, self._overlay.table)


class Caller(threading.Thread):
    """Asks daemons until a time, and releases what is old.

    :param requests: is shared with other callers
    """

    def __init__(
        self, client: Any, requests: Iterator[Any], until: float
    ) -> None:
        super().__init__()
        self._client, self._requests, self._until = client, requests, until
        self._live = collections.deque[str]()

    def run(self) -> None:
        while time.monotonic() < self._until:
            asked = next(self._requests)
            with contextlib.suppress(errors.SchedulerError):
                made = self._client.select_destinations(CONTEXT, asked)
                self._live += [
                    place['instance_uuid'] for place in made['placements']
                ]
            while len(self._live) > _LIVE_OF_CALLER:
                self._client.release(CONTEXT, [self._live.popleft()])


def of_daemons(args: argparse.Namespace) -> dict[str, Any]:
    """Have daemons decide; return how many steps are as they really were."""
    mix = mixes.cloud(100_000, args.hosts)
    document = mixes.inventory(args.hosts)
    document['server_groups'] = mix.server_groups
    del document['pools']
    # Nearly equal hosts: any difference sends a request elsewhere.
    for number, host in enumerate(document['hosts']):
        host |= {'memory_mb': 262_144 + number % 16, 'vcpus': 64,
                 'local_gb': 4000}  # fmt: skip
    every = [asked for asked, _ in mix.requests]
    plain = next(asked for asked in every if 'num_instances' not in asked)
    requests = itertools.repeat(plain) if args.one else iter(every)
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, args.daemons) as cloud,
    ):
        cloud.bring(document)
        until = time.monotonic() + args.seconds
        crowd = [
            Caller(cloud.client(), requests, until) for _ in range(_CALLERS)
        ]
        for caller in crowd:
            caller.start()
        for caller in crowd:
            caller.join()
        cloud.signal(signal.SIGTERM)
        for one in cloud.running:
            one.wait()
        now = time.time()
        files = [str(cloud.config)], ()
        result = replay.decide(
            replay.Job(0, None, files, 0.0, now, None, 0, ['steps'])
        )
    for step in result.differing:
        print(*step)
    return {
        **result.figures['steps'],
        'unread': [each.why for each in result.unread],
        'remarks': [*result.remarks],
    }


def measured(job: replay.Job) -> dict[str, Any]:
    """Replay; return figures of this process."""
    spent, select = 0.0, HostPipeline.select

    def timed(*args: Any, **more: Any) -> Any:
        nonlocal spent
        start = time.process_time()
        try:
            return select(*args, **more)
        finally:
            spent += time.process_time() - start

    HostPipeline.select = timed  # type: ignore[method-assign]
    start, cpu = time.perf_counter(), time.process_time()
    result = replay.decide(job)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        **{
            name: figures[name]
            for figures in result.figures.values()
            for name in ('requests', 'placed', 'as_really')
            if name in figures
        },
        'seconds': round(seconds, 1),
        'processor seconds': round(cpu, 1),
        'choosing': round(spent, 1),
        'of choosing': round(cpu / spent, 2) if spent else None,
        'memory MB': round(common.memory_mb(os.getpid(), peak=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--requests', type=int, default=100_000)
    parser.add_argument('--daemons', type=int, default=0)
    parser.add_argument('--seconds', type=float, default=120.0)
    parser.add_argument(
        '--one', action='store_true', help='one request over and over'
    )
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    if args.daemons:
        common.show(of_daemons(args), args.json)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f'sqlite:///{folder}/replay.db'
        path = common.write_config(pathlib.Path(folder), url, 'inproc://')
        common.manage(path, 'db', 'sync')
        files = [str(path)], ()
        mix = mixes.cloud(args.requests, args.hosts)
        document = mixes.inventory(args.hosts)
        document['server_groups'] = mix.server_groups
        del document['pools']
        store = Store.connect(url)
        recorder = Recorder(
            store, build_table(document), adapters.load(*files)
        )
        for number, (asked, _) in enumerate(mix.requests, 1):
            recorder.decide(number, asked)
        recorder.look()
        store.dispose()
        now = time.time()
        for part in replay.PARTS:
            job = replay.Job(
                0, str(path), files, now - 86_400, now, None, 0, [part]
            )
            with multiprocessing.get_context('spawn').Pool(1) as pool:
                figures = pool.apply(measured, [job])
            common.show({'part': part, **figures}, args.json)


if __name__ == '__main__':
    sys.exit(main())
