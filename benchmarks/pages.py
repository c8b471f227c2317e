"""How long pages take, and what they cost the daemon that serves them.

``python -m benchmarks.pages --hosts 10000 --decisions 50000`` on a private
PostgreSQL: ten clients open two pages a second in all. Printed of each page
are its times, and the processor time of the daemon for it alone; of the
daemon, how much its memory grew; and the processor time of the picture of
100,000 hosts.

With ``--why`` somebody asks why a request was decided so, all the time.
``--deciding`` measures instead what deciding feels of it: the requests of
``benchmarks.mix``, in turns with and without a client that opens a page each
second.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import itertools
import pathlib
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from benchmarks import common, lists, mix
from benchmarks.measured import BATCH, running
from benchmarks.timing import count
from scheduler_service.pages.picture import Picture
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support import servers
from tests.support.waiting import LIMIT_S

PAGES = {
    'overview': '/',
    'decisions': '/decisions',
    'refusals': '/decisions?outcome=refused&since=1h',
    'decision': '/decisions/req-100',
    'cloud': '/cloud',
    'picture': '/cloud.png?by=zone&block=zone-1',
    'hosts': '/hosts',
    'hosts of a zone': '/hosts?zone=zone-1',
    'host': f'/hosts/{common.host_name(7)}',
    'cloud of a flavor': '/cloud?flavor=vcpus%3D2,memory_mb%3D4096',
    'try': '/try?flavor=vcpus%3D2,memory_mb%3D4096',
}
CLIENTS = 10
# Pages of all clients together, in a second.
RATE = 2.0
# How often each page is opened alone.
_ALONE = 20
_MANY = 100_000
# Of deciding: how often each has its turn, in seconds each.
_TURNS, _TURN_S = 4, 4.0


def fetch(port: int, path: str) -> int:
    """Open a page on a new connection; return the status."""
    conn = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT_S)
    conn.request('GET', path, headers={'Accept': 'text/html'})
    answer = conn.getresponse()
    answer.read()
    conn.close()
    return answer.status


def alone(pid: int, port: int, path: str) -> float:
    """Return the processor time of the daemon for a page, in ms."""
    fetch(port, path)
    before = common.cpu_seconds(pid)
    for _ in range(_ALONE):
        fetch(port, path)
    return round((common.cpu_seconds(pid) - before) / _ALONE * 1000, 1)


def together(
    port: int, pages: dict[str, str], seconds: float
) -> dict[str, list[float]]:
    """Have the clients open pages; return the times of each, in ms."""
    times: dict[str, list[float]] = defaultdict(list)
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        rng = random.Random(number)
        pause = CLIENTS / RATE
        time.sleep(pause * number / CLIENTS)
        while time.monotonic() < end:
            name = rng.choice(list(pages))
            start = time.monotonic()
            fetch(port, pages[name])
            took = time.monotonic() - start
            times[name].append(took * 1000)
            time.sleep(max(0.0, pause - took))

    threads = [threading.Thread(target=client, args=(n,))
               for n in range(CLIENTS)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def picture_ms(hosts: int) -> float:
    """Return the processor time of a picture of so many hosts, in ms."""
    made = table(lists.with_zones(common.inventory(hosts)))
    start = time.process_time()
    picture = Picture(made, Settings(), 'zone', None)
    for block in picture.blocks:
        picture.png(block)
    return round((time.process_time() - start) * 1000, 1)


@contextlib.contextmanager
def looking(port: int, pages: Iterator[str]) -> Iterator[None]:
    """Open a page each second, one after the other, until the block ends."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1.0):
            fetch(port, next(pages))

    thread = threading.Thread(target=look)
    thread.start()
    yield
    ended.set()
    thread.join()


def deciding(hosts: int) -> dict[str, Any]:
    """Return what deciding costs with and without somebody who looks."""
    port, pages = servers.free_port(), itertools.cycle(PAGES.values())
    samples: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        args = mix.parser().parse_args(['--hosts', str(hosts)])
        cloud = mix.Cloud(args, stack)
        (spec,) = cloud.specs()
        spec = dataclasses.replace(spec, config=f'[http]\nbind_port={port}\n')
        daemon = stack.enter_context(
            running(spec, cloud.bus, cloud.mix.requests)
        )
        for _ in range(_TURNS):
            for who, looks in (('nobody', False), ('one', True)):
                watched = looking(port, pages) if looks else (
                    contextlib.nullcontext()
                )  # fmt: skip
                with watched:
                    for what, call, callers, each in (
                        ('batch', daemon.batch, 2, BATCH),
                        ('callers', daemon.claimed, 16, 1),
                    ):
                        before = daemon.cpu_seconds()
                        made = count(call, callers, _TURN_S).calls * each
                        used = daemon.cpu_seconds() - before
                        samples[f'{what}, cpu ms, {who}'].append(
                            used / made * 1000
                        )
                    end = time.monotonic() + _TURN_S
                    while time.monotonic() < end:
                        took = common.timed(daemon.claimed) * 1000
                        samples[f'single, ms, {who}'].append(took)
                daemon.release_old()
    figures: dict[str, Any] = {
        f'{what}, with one who looks to without': round(
            statistics.median(
                one / nobody
                for one, nobody in zip(
                    samples[f'{what}, cpu ms, one'],
                    samples[f'{what}, cpu ms, nobody'],
                    strict=True,
                )
            ),
            3,
        )
        for what in ('batch', 'callers')
    }
    for name, some in samples.items():
        some.sort()
        at = 0.99 if name.startswith('single') else 0.5
        figures[f'{name}, {at:.0%}'] = round(some[int(len(some) * at)], 3)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--decisions', type=int, default=50_000)
    parser.add_argument('--seconds', type=float, default=60.0)
    parser.add_argument('--deciding', action='store_true')
    parser.add_argument('--why', action='store_true')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    if args.deciding:
        common.show(deciding(args.hosts), args.json)
        return
    document = lists.with_zones(common.inventory(args.hosts))
    with (
        servers.postgresql(durable=False) as (_, url),
        tempfile.TemporaryDirectory() as folder,
    ):
        database = common.create_database(url)
        config = common.write_config(
            pathlib.Path(folder), database, 'inproc://pages/', topic='pages'
        )
        port = servers.free_port()
        with config.open('a') as file:
            file.write(f'[http]\nbind_port = {port}\n')
        common.import_inventory(config, document)
        lists.store_decisions(database, args.decisions, args.hosts)
        with common.daemon(config) as process:
            figures = figures_of(process.pid, port, args.seconds, args.why)
    figures[f'picture of {_MANY} hosts'] = {'cpu_ms': picture_ms(_MANY)}
    common.show(figures, args.json)


def figures_of(
    pid: int, port: int, seconds: float, why: bool
) -> dict[str, Any]:
    """Return the figures of each page that the daemon has.

    :param why: whether somebody asks why all the time
    """
    fetch(port, '/v1/openapi.json')
    memory = common.memory_mb(pid)
    pages = {n: path for n, path in PAGES.items() if fetch(port, path) == 200}
    cpu = {name: alone(pid, port, path) for name, path in pages.items()}
    asked = looking(port, itertools.repeat('/why/req-100'))
    with asked if why else contextlib.nullcontext():
        times = together(port, pages, seconds)
    figures: dict[str, Any] = {
        name: {
            'cpu_ms': cpu[name],
            'times': len(times[name]),
            'p95_ms': round(sorted(times[name])[int(len(times[name]) * 0.95)])
            if times[name] else None,
        }
        for name in pages
    }  # fmt: skip
    grown = round(common.memory_mb(pid) - memory, 1)
    return {**figures, 'daemon': {'memory_mb_more': grown}}


if __name__ == '__main__':
    main()
