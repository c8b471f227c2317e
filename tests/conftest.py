"""Fixtures that many tests share: real servers, stores on three databases.

A server that is not installed skips its tests, unless
``SCHEDULER_TEST_REQUIRE_SERVICES`` is set: then it is a failure.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from tests.support import servers
from tests.support.databases import DATABASES, new_database


def _run(start: Callable[[], Any]) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(start())
        except servers.ServerMissing as missing:
            if os.environ.get('SCHEDULER_TEST_REQUIRE_SERVICES'):
                pytest.fail(str(missing), pytrace=False)
            pytest.skip(str(missing))
        yield running


@pytest.fixture(scope='session')
def postgresql() -> Iterator[tuple[servers.Server, str]]:
    """A private PostgreSQL: (server, URL without the database)."""
    yield from _run(servers.postgresql)


@pytest.fixture(scope='session')
def mariadb() -> Iterator[tuple[servers.Server, str]]:
    """A private MariaDB: (server, URL without the database)."""
    yield from _run(servers.mariadb)


@pytest.fixture(scope='session')
def rabbitmq() -> Iterator[tuple[servers.Server, str]]:
    """A private RabbitMQ: (server, transport URL)."""
    yield from _run(servers.rabbitmq)


@pytest.fixture(scope='session')
def quorum_bus(rabbitmq: tuple[servers.Server, str]) -> str:
    """A virtual host of its own, where queues may be of the durable kind."""
    server, url = rabbitmq
    servers.rabbitmqctl(server, 'add_vhost', 'quorum')
    servers.rabbitmqctl(
        server, 'set_permissions', '-p', 'quorum', 'guest', '.*', '.*', '.*'
    )
    return url + 'quorum'


@pytest.fixture
def make_url(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Callable[[str], str]:
    """Give a function that makes an empty database of a kind."""

    def make(kind: str) -> str:
        if kind == 'sqlite':
            return new_database(f'sqlite:///{tmp_path}/')
        return new_database(request.getfixturevalue(kind)[1])

    return make


@pytest.fixture
def make_store(make_url: Callable[[str], str]) -> Iterator[Any]:
    """Give a function that makes a store with its tables, by kind."""
    made: list[Store] = []

    def make(kind: str = 'sqlite') -> Store:
        store = Store.connect(make_url(kind), max_pool_size=20)
        made.append(store)
        migrate.sync(store)
        return store

    yield make
    for store in made:
        store.dispose()


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, make_store: Any) -> Store:
    """A store with its tables and nothing in them, on each database."""
    found: Store = make_store(request.param)
    return found
