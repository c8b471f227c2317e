"""Fixtures of daemons: in this process on any bus, and as processes."""

import contextlib
import functools
import pathlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_service.rpc.client import SchedulerClient
from tests.rigs.fake_placement import FakePlacement
from tests.support import full_disks, processes, servers
from tests.support.databases import migrated_database, ready_database
from tests.support.http_client import HttpClient
from tests.support.processes import Process
from tests.support.servers import free_port
from tests.support.services import Service, connected, started
from tests.support.stores import import_inventory


@pytest.fixture(scope='session')
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Give a function that returns the URL of a database by kind.

    All that call it get the same one: it takes long to make one with tables.
    """

    @functools.cache
    def url(kind: str) -> str:
        base = f'sqlite:///{tmp_path_factory.mktemp("shared")}/'
        if kind != 'sqlite':
            base = request.getfixturevalue(kind)[1]
        return migrated_database(base)

    return url


@pytest.fixture
def make_service(
    make_store: Any, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Service]]:
    """Give a function that starts a daemon in this process."""
    running: list[Service] = []

    def make(
        bus: str = 'inproc',
        database: str = 'sqlite',
        url: str = '',
        inventory: Any = None,
        **more: Any,
    ) -> Service:
        store = make_store(database)
        import_inventory(store, inventory)
        if bus == 'rabbit':
            url = request.getfixturevalue('rabbitmq')[1]
            more.setdefault('scheduler__topic', f't{uuid.uuid4().hex[:8]}')
        running.append(started(store, url, **more))
        return running[-1]

    yield make
    for service in running:
        service.stop()


@pytest.fixture
def serve_http(make_service: Any) -> Iterator[Callable[..., HttpClient]]:
    """Give a function that starts a daemon with HTTP, and returns a client."""
    made: list[HttpClient] = []

    def make(**more: Any) -> HttpClient:
        port = free_port()
        service = make_service(http__bind_port=port, **more)
        made.append(HttpClient(service, port))
        return made[-1]

    yield make
    for http in made:
        http.close()


@pytest.fixture
def ready_sqlite(tmp_path: pathlib.Path) -> str:
    """A database file with tables and an inventory."""
    return ready_database(f'sqlite:///{tmp_path}/')


@pytest.fixture
def database_on_disk(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[Callable[[str], tuple[full_disks.Disk, str]]]:
    """Give a function that makes a database on a small disk of its own.

    It has a server of its own, too: a server that cannot write the pages of
    one database fails for the others.
    """
    with contextlib.ExitStack() as stack:

        def make(kind: str) -> tuple[full_disks.Disk, str]:
            server, base = None, ''
            if kind != 'sqlite':
                request.getfixturevalue(kind)  # skips where there is none
                run = {
                    'postgresql': servers.postgresql,
                    'mariadb': servers.mariadb,
                }[kind]
                server, base = stack.enter_context(run(durable=False))
            return stack.enter_context(
                full_disks.database(kind, server, base, tmp_path)
            )

        yield make


@pytest.fixture
def fake() -> Iterator[FakePlacement]:
    """A stand-in for the placement service, which keeps its calls."""
    with FakePlacement().running() as running:
        yield running


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Iterator[Callable[..., Process]]:
    """Give a function that starts a daemon as a process."""
    running: list[Process] = []

    def start(database: str, bus: str, extra: str = '', **env: str) -> Process:
        path = tmp_path / f'{len(running)}.conf'
        path.write_text(
            f'[DEFAULT]\ntransport_url = {bus}\n'
            f'[database]\nconnection = {database}\n{extra}\n'
        )
        running.append(processes.launch(path, **env))
        return running[-1]

    yield start
    for process in running:
        process.remove()


@pytest.fixture
def connect() -> Iterator[Callable[..., SchedulerClient]]:
    """Give a function that returns a client of a bus, of :func:`connected`."""
    with contextlib.ExitStack() as stack:
        yield lambda *bus, **how: stack.enter_context(connected(*bus, **how))
