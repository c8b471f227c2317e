"""Runs nova's own functional tests with a daemon in place of its scheduler."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.support import interop, servers
from tests.support.paths import ROOT

FOLDER = ROOT / 'tests/interop/nova_functional'
# Whose decisions: nova-scheduler's; those of a daemon as it is shipped; those
# of a daemon that has read all before each call.
MODES = ('stock', 'shipped', 'fresh')
PASSED = ('ok', 'skip', 'xfail')
# A test ends itself after this time, in seconds.
_TEST_LIMIT_S = 180
_STOP_S = 20


def ids(name: str) -> list[str]:
    """Return the tests of a list in this folder."""
    lines = (FOLDER / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


def causes() -> dict[str, str]:
    """Return why tests fail with a daemon: id -> the comment above it."""
    cause, found = '', {}
    before = ''
    for line in (FOLDER / 'differences.txt').read_text().splitlines():
        if line.startswith('#'):
            joined = f'{cause} ' if before.startswith('#') else ''
            cause = joined + line.removeprefix('#').strip()
        elif line:
            found[line] = cause
        before = line
    return found


class Runner:
    """Runs tests; one that fails is run once more, alone.

    :param bus: URL of a RabbitMQ
    :param folder: for logs
    :param workers: how many tests run at once
    """

    def __init__(self, bus: str, folder: pathlib.Path, workers: int) -> None:
        self._bus = bus
        self._folder = folder
        self._workers = workers

    def run(
        self,
        mode: str,
        names: Iterable[str],
        done: Callable[[dict[str, Any]], None] = lambda result: None,
    ) -> list[dict[str, Any]]:
        """Return what became of each test, in any order.

        :param done: called with each result
        """
        results, again = [], []
        for result in self._each(mode, names, self._workers):
            if result['status'] in PASSED:
                results.append(result)
                done(result)
            else:
                again.append(result['id'])
        for result in self._each(mode, again, 1):
            results.append(result)
            done(result)
        return results

    def differing(
        self, results: Iterable[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the results that are not those of nova-scheduler."""
        failed = {
            result['id']: result
            for result in results
            if result['status'] not in PASSED
        }
        stock = self.run('stock', failed)
        return [failed[one['id']] for one in stock if one['status'] == 'ok']

    def _each(
        self, mode: str, names: Iterable[str], workers: int
    ) -> Iterator[dict[str, Any]]:
        free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        started = [
            _Worker(mode, self._bus, self._folder / f'{mode}{number}')
            for number in range(workers)
        ]
        for worker in started:
            free.put(worker)

        def run(name: str) -> dict[str, Any]:
            worker = free.get()
            try:
                return worker.run(name)
            finally:
                free.put(worker)

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            try:
                runs = [pool.submit(run, name) for name in names]
                for one in concurrent.futures.as_completed(runs):
                    yield one.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in started:
                    worker.stop()


class _Worker:
    """A process that runs tests, one at a time; started for the first one."""

    def __init__(self, mode: str, bus: str, folder: pathlib.Path) -> None:
        self._arguments = [mode, bus, folder, sys.executable]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str) -> dict[str, Any]:
        """Return what became of a test."""
        process = self._process = self._process or self._start()
        process.stdin.write(f'{name}\n')
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.stop()
        return json.loads(line or 'null') or {
            'id': name,
            'status': 'ended',
            'why': f'The process ended: {self._folder}/worker.log',
        }

    def _start(self) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / 'worker.log').open('a') as log:
            return subprocess.Popen(
                [_nova(), '-W', 'ignore', FOLDER / 'worker.py',
                 *self._arguments],
                env={
                    **os.environ,
                    **interop.NOVA_ENVIRONMENT,
                    'OS_TEST_TIMEOUT': str(_TEST_LIMIT_S),
                    'TMPDIR': str(self._folder),
                },
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, cwd='/',
            )  # fmt: skip

    def stop(self) -> None:
        """End the process, after its test."""
        process, self._process = self._process, None
        if process is None:
            return
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        process.kill()
        with process:
            process.wait()


@contextlib.contextmanager
def bus() -> Iterator[str]:
    """Run a RabbitMQ; yield the URL of a virtual host."""
    with servers.rabbitmq() as (server, url):
        yield servers.new_vhost(server, url)


@functools.cache
def _nova() -> pathlib.Path:
    """Return the interpreter, once its tests find the files they read."""
    environment = interop.openstack()
    (packages,) = environment.glob('lib/python*/site-packages')
    with contextlib.suppress(FileExistsError):
        (packages / 'etc').symlink_to('../../../etc')
    return environment / 'bin/python'
