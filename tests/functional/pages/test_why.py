"""Why a request was decided as it was, as a page, in a real browser.

The command that finds it out is a process of the daemon.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.store.connection import Store
from tests.support import processes
from tests.support.browsers import (
    Watched,
    overflow_on_a_telephone,
    serious,
)
from tests.support.databases import ready_database
from tests.support.documents import SMALL
from tests.support.engines import start_engine
from tests.support.processes import Process
from tests.support.servers import free_port
from tests.support.waiting import LIMIT_S, wait_until

WHY = '/why/req-refused'


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp('why')


@pytest.fixture(scope='module')
def port() -> int:
    return free_port()


@pytest.fixture(scope='module')
def process(folder: pathlib.Path, port: int) -> Iterator[Process]:
    """A daemon whose store has a request that was refused, and one chosen."""
    url = ready_database(f'sqlite:///{folder}/')
    store = Store.connect(url)
    engine = start_engine(store)
    for name, memory in (('refused', 10**7), ('chosen', 512)):
        flavor = {**SMALL, 'memory_mb': memory}
        asked = documents.request(
            {'flavor': flavor, 'request_id': f'req-{name}'}
        )
        with contextlib.suppress(errors.NoValidHost):
            engine.select_destinations(asked).result(LIMIT_S)
    engine.stop()
    store.dispose()
    config = folder / 'a.conf'
    config.write_text(
        '[DEFAULT]\ntransport_url = inproc://\n'
        f'[database]\nconnection = {url}\n[http]\nbind_port = {port}\n'
    )
    daemon = processes.launch(config)
    daemon.wait_for('Ready:')
    yield daemon
    daemon.remove()


@pytest.fixture
def shown(browser: Any, process: Process, port: int) -> Iterator[Watched]:
    pages = Watched(browser, f'http://127.0.0.1:{port}')
    yield pages
    pages.close()
    assert pages.complaints == []


def commands(process: Process) -> list[int]:
    """Return the processes of the command that the daemon runs."""
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            parent = re.search(r'\) \S (\d+)', (path / 'stat').read_text())
            words = (path / 'cmdline').read_bytes().split(b'\0')
        except OSError:
            continue
        if (
            parent is not None
            and int(parent[1]) == process.popen.pid
            and b'why' in words
        ):
            found.append(int(path.name))
    return found


def check(page: Any) -> None:
    """Check that a page is for all, and fits a telephone."""
    assert serious(page) == []
    assert overflow_on_a_telephone(page) <= 0
    assert page.locator('h1').count() == 1


def test_a_click_says_what_would_let_hosts_pass(shown: Watched) -> None:
    page = shown.open('/decisions/req-refused', java_script_enabled=False)
    page.click('text=Explain as it was decided')
    page.wait_for_url(f'**{WHY}?host=')
    text = page.inner_text('main')
    assert 'On the hosts of then, judged by configuration' in text
    assert 'RamFilter' in page.inner_text('[aria-label=Funnel]')
    assert 'in place of 10,000,000' in page.inner_text(
        '[aria-label="What would let hosts pass"]'
    )


def test_a_host_is_shown_beside_the_best(shown: Watched) -> None:
    narrow = {'width': 400, 'height': 800}
    page = shown.open('/decisions/req-chosen', viewport=narrow)
    page.fill('input[name=host]', 'compute-1')
    page.click('text=Explain as it was decided')
    page.wait_for_url('**/why/req-chosen?host=compute-1')
    amounts = page.inner_text('[aria-label="Amounts of compute-1"]')
    assert 'MEMORY_MB' in amounts
    assert 'taken now' in page.inner_text('main')
    check(page)


def test_the_history_of_a_host_and_its_drain_plan_are_pages(
    shown: Watched,
) -> None:
    page = shown.open('/decisions/req-chosen')
    page.click('[aria-label="Chosen hosts"] tbody a')
    page.wait_for_url('**/hosts/*')
    name = page.url.rpartition('/')[2]
    page.click('text=What happened to it')
    page.wait_for_url(f'**/history/{name}')
    assert 'claimed' in page.inner_text('main')
    check(page)
    page.go_back()
    page.click('text=where its instances could go')
    page.wait_for_url(f'**/drain/{name}')
    row = page.locator('tbody tr').first.inner_text()
    assert 'compute-' in row
    check(page)
    told = shown.open('/drain/compute-0', 404).inner_text('main')
    assert 'HostNotFound, status 404' in told


def test_what_cannot_be_said_is_an_error(shown: Watched) -> None:
    # What begins like an option is the id of a request.
    told = shown.open('/why/--help', 404).inner_text('main')
    assert 'DecisionNotFound, status 404' in told
    told = shown.open(f'{WHY}?attempt=1', 400).inner_text('main')
    assert 'attempt: not a parameter' in told


def test_one_at_a_time_which_ends_when_its_page_is_left(
    shown: Watched, process: Process
) -> None:
    page = shown.open('/decisions/req-refused')
    page.click('text=Explain as it was decided', no_wait_after=True)
    (running,) = wait_until(lambda: commands(process))
    # It takes long.
    os.kill(running, signal.SIGSTOP)
    assert os.getpriority(os.PRIO_PROCESS, running) > 0
    told = shown.open(WHY, 503).inner_text('main')
    assert 'one at a time: ask again soon' in told
    assert 'ServiceBusy, status 503' in told
    # Other pages are shown while it is stopped.
    shown.open('/decisions')
    assert commands(process) == [running]
    page.goto('about:blank')
    wait_until(lambda: not commands(process))
    check(shown.open(WHY))


def test_it_ends_with_a_daemon_that_is_killed(
    process: Process, port: int
) -> None:
    """The last test: the others need the daemon."""
    with socket.create_connection(('127.0.0.1', port)) as client:
        client.sendall(
            f'GET {WHY} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n'.encode()
        )
        (running,) = wait_until(lambda: commands(process))
        folder = pathlib.Path(f'/proc/{running}')
        wait_until(lambda: 'sqlite3' in (folder / 'maps').read_text())
        os.kill(running, signal.SIGSTOP)
        process.popen.kill()
        # Its entry stays where nobody asks for its status.
        wait_until(
            lambda: (
                not folder.exists() or ') Z ' in (folder / 'stat').read_text()
            )
        )
