"""Daemons of an earlier release and of this one, on one topic and one store.

The earlier one is a commit of this repository, built as a wheel and installed
into an environment of its own. This one has a migration more, which only this
test has.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from tests.support import next_release, processes, servers, wheels
from tests.support.databases import new_database
from tests.support.paths import ROOT
from tests.support.processes import Process
from tests.support.stores import audit_findings
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until

pytestmark = [
    pytest.mark.slow, pytest.mark.broker, pytest.mark.db,
    pytest.mark.timeout(900 * SLOWNESS),
]  # fmt: skip
TOPIC = 'rolling'
CALLER = ROOT / 'tests/support/rolling_caller.py'
HOSTS = 40
# How many more answers a caller gets before the next step is taken.
ANSWERS = 15


@pytest.fixture(scope='module')
def earlier(tmp_path_factory) -> pathlib.Path:
    """The folder of the programs of the earlier release."""
    return wheels.install_commit(
        wheels.EARLIER, tmp_path_factory.mktemp('earlier')
    )


@dataclasses.dataclass
class Release:
    """Programs of one release.

    :ivar python: its interpreter
    :ivar environment: that its processes get
    """

    python: pathlib.Path | str
    environment: dict[str, str]
    config: pathlib.Path

    def run(self, name: str, *words: str) -> None:
        """Run a command to its end; it has to succeed."""
        done = subprocess.run(
            [self.python, '-m', f'scheduler_service.cmd.{name}',
             '--config-file', str(self.config), *words],
            env={**os.environ, **self.environment}, cwd=self.config.parent,
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> Process:
        """Start a daemon, and wait until it serves."""
        daemon = processes.launch(
            self.config,
            python=self.python,
            cwd=str(self.config.parent),
            **self.environment,
        )
        daemon.wait_for('Ready')
        return daemon


@dataclasses.dataclass
class Caller:
    """A process that calls; see ``rolling_caller``."""

    popen: subprocess.Popen[str]
    log: pathlib.Path

    def answers(self) -> list[dict[str, Any]]:
        """Return what it has printed so far, whole lines only."""
        assert not self.popen.poll(), self.log.with_suffix('.err').read_text()
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith('\n')]

    def wait_for_more(self) -> None:
        """Wait until it has some more answers."""
        before = len(self.answers())
        wait_until(lambda: len(self.answers()) >= before + ANSWERS)

    def end(self) -> None:
        """Let it finish what it has sent."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.popen.wait(LIMIT_S) == 0


@pytest.fixture
def config(rabbitmq, postgresql, tmp_path) -> pathlib.Path:
    """A configuration that both releases read, with a topic."""
    path = tmp_path / 'service.conf'
    path.write_text(
        f'[DEFAULT]\ntransport_url = {servers.new_vhost(*rabbitmq)}\n'
        f'[database]\nconnection = {new_database(postgresql[1])}\n'
        f'[scheduler]\ntopic = {TOPIC}\n'
    )
    return path


@pytest.fixture
def releases(earlier, config, tmp_path) -> tuple[Release, Release]:
    """The earlier release and this one."""
    package = next_release.copy_package(tmp_path / 'package')
    return (
        Release(earlier / 'python', {'PYTHONPATH': ''}, config),
        Release(sys.executable, {'PYTHONPATH': str(package)}, config),
    )


@pytest.fixture
def callers(
    releases, config, tmp_path
) -> Iterator[Callable[[], list[Caller]]]:
    """Give a function that starts a caller of each release."""
    with contextlib.ExitStack() as stack:

        def start() -> list[Caller]:
            started = []
            for number, release in enumerate(releases):
                log = tmp_path / f'caller-{number}'
                output = stack.enter_context(log.open('w'))
                errors = stack.enter_context(log.with_suffix('.err').open('w'))
                popen = subprocess.Popen(
                    [release.python, CALLER, config, TOPIC],
                    stdin=subprocess.PIPE, stdout=output, stderr=errors,
                    text=True, env={**os.environ, **release.environment},
                )  # fmt: skip
                stack.enter_context(popen)
                stack.callback(popen.kill)
                started.append(Caller(popen, log))
            return started

        yield start


@pytest.fixture
def inventory(tmp_path) -> str:
    path = tmp_path / 'inventory.yaml'
    hosts = [
        {'host': f'h{n}', 'vcpus': 1000, 'memory_mb': 10**6, 'local_gb': 1000}
        for n in range(HOSTS)
    ]
    path.write_text(json.dumps({'hosts': hosts}))
    return str(path)


def work(callers: list[Caller]) -> None:
    """Let every caller have some more answers."""
    for caller in callers:
        caller.wait_for_more()


def check(callers: list[Caller], config: pathlib.Path) -> None:
    """Compare what callers were told with what the database has."""
    (url,) = re.findall('(?m)^connection = (.*)$', config.read_text())
    store = Store.connect(url)
    try:
        told = [answer for caller in callers for answer in caller.answers()]
        assert [one for one in told if 'fault' in one] == []
        released = {
            one['instance']: one['released']
            for one in told
            if 'released' in one
        }
        assert len(released) > ANSWERS
        assert set(released.items()) == {
            (instance, str([instance])) for instance in released
        }
        kept = {
            one['instance']: one['host']
            for one in told
            if one['instance'] not in released
        }
        with store.reading() as conn:
            found = {
                claim['uuid']: claim['host']
                for claim in claim_queries.listing(conn)
            }
        assert found == kept
        assert audit_findings(store) == []
    finally:
        store.dispose()
    print(f'{len(told)} requests, {len(kept)} claims, 0 lost')


def test_daemons_are_replaced_one_by_one_and_nothing_is_lost(
    releases, callers, config, inventory
):
    before, now = releases
    with contextlib.ExitStack() as running:

        def start(release: Release) -> Process:
            daemon = release.start()
            running.callback(daemon.remove)
            return daemon

        before.run('manage', 'db', 'sync')
        before.run('manage', 'inventory', 'import', inventory)
        daemons = [start(before), start(before)]
        calling = callers()
        work(calling)
        # The tables first, under the daemons that are there.
        now.run('manage', 'db', 'sync')
        work(calling)
        for old in daemons:
            new = start(now)
            work(calling)
            assert old.end() == 0
            work(calling)
        assert new.popen.poll() is None
        # And back again, as an operator does who is not content.
        back = start(before)
        work(calling)
        assert new.end() == 0
        work(calling)
        for one in calling:
            one.end()
        assert back.end() == 0
    check(calling, config)
