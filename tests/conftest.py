"""Fixtures that all tests share: real servers, stores on three databases.

A server that is not installed skips its tests, unless
``SCHEDULER_TEST_REQUIRE_SERVICES`` is set: then it is a failure.
"""

import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import hypothesis
import pymysql
import pytest

from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.store.connection import Store
from tests.support import databases, failures, requirements, servers
from tests.support.databases import (
    IdleStores,
    migrated_database,
    new_database,
)
from tests.support.shared_servers import RemoteServers, SharedServers
from tests.support.waiting import LIMIT_S, SLOWNESS

from oslo_messaging import opts  # isort: skip

# A busy machine makes examples slow, which is no fault of what is tested.
hypothesis.settings.register_profile(
    'patient',
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('patient')

# Folders that take longest, each run by one process: its tests share a cloud,
# a cluster, or all imports of the compute service.
_SHARING = (
    'tests/interop/cloud',
    'tests/interop/kube',
    'tests/interop/nova_functional',
)
_SERVERS = pytest.StashKey[SharedServers | RemoteServers]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Prepare the servers of the session; none is started yet."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(failures.SEED)
    # What is installed stays as it is; to look at it took a third of the time
    # that a daemon in the tests' process needs to start.
    metadata.entry_points = functools.cache(metadata.entry_points)
    # To copy these took a fifth of the time of a daemon.
    opts.list_opts = functools.cache(opts.list_opts)
    # PyMySQL makes a context for each connection in case the server offers
    # TLS: with all certificates of the system that takes most of its time.
    make = pymysql.connections.Connection._create_ssl_ctx
    preferred = functools.cache(lambda: make(None, {}))
    pymysql.connections.Connection._create_ssl_ctx = lambda self, asked: (
        make(self, asked) if asked else preferred()
    )
    address = getattr(config, 'workerinput', {}).get(
        'servers', os.environ.get('SCHEDULER_TEST_SERVERS')
    )
    config.stash[_SERVERS] = (
        RemoteServers(address) if address else SharedServers()
    )


def pytest_report_header() -> str:
    """Say what the tests choose by, and how long they wait."""
    return (
        f'seed: {failures.SEED} (SCHEDULER_TEST_SEED)\n'
        f'machine: {SLOWNESS} times as slow as usual; nothing is waited for '
        f'longer than {LIMIT_S:.0f} s'
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose at random as the test always does with this seed."""
    failures.begin(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[Any]:
    """Show in the report of a failure what is needed to understand it."""
    report = yield
    if report.failed and call.excinfo is not None:
        report.sections.extend(
            failures.sections(item.nodeid, call.excinfo.value)
        )
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist where to ask for servers."""
    shared = node.config.stash[_SERVERS]
    node.workerinput['servers'] = shared.listen()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give one process all tests of a file, or of a folder that shares."""
    if config.getvalue('dist') != 'loadfile':
        return None
    # Only a run in several processes needs it.
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = _portion
    return scheduling


def _portion(nodeid: str) -> str:
    """Return the folder or the file of a test that goes to one process."""
    file = nodeid.partition('::')[0]
    folder = file.rpartition('/')[0]
    return folder if folder in _SHARING else file


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the servers that were started."""
    config.stash[_SERVERS].close()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark the tests that need more than Python, or more time.

    In several processes those that take longest start first: small ones at the
    end let all processes end together.
    """
    if hasattr(config, 'workerinput'):
        slow = {i.path for i in items if i.get_closest_marker('slow')}
        items.sort(
            key=lambda item: (
                _portion(item.nodeid) not in _SHARING,
                item.path not in slow,
            )
        )
    tests = pathlib.Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(tests / 'functional'):
            item.add_marker(pytest.mark.functional)
        if item.path.is_relative_to(tests / 'interop'):
            # The first of them installs other projects' packages, and has
            # these make their tables.
            item.add_marker(pytest.mark.timeout(1200 * SLOWNESS))
        else:
            # More than the limit of any wait, so that this one fails first.
            item.add_marker(pytest.mark.timeout(2 * LIMIT_S))


def _shared(
    request: pytest.FixtureRequest, kind: str
) -> tuple[servers.Server, str]:
    try:
        return request.config.stash[_SERVERS].get(kind)
    except servers.ServerMissing as fault:
        requirements.missing(str(fault))


@pytest.fixture
def servers_address(request: pytest.FixtureRequest) -> str:
    """Where a pytest that a test runs asks for the servers of this one."""
    return request.config.stash[_SERVERS].listen()


@pytest.fixture(scope='session')
def postgresql(request: pytest.FixtureRequest) -> tuple[servers.Server, str]:
    """A private PostgreSQL: (server, URL without the database)."""
    return _shared(request, 'postgresql')


@pytest.fixture(scope='session')
def mariadb(request: pytest.FixtureRequest) -> tuple[servers.Server, str]:
    """A private MariaDB: (server, URL without the database)."""
    return _shared(request, 'mariadb')


@pytest.fixture(scope='session')
def rabbitmq(request: pytest.FixtureRequest) -> tuple[servers.Server, str]:
    """A private RabbitMQ: (server, transport URL)."""
    return _shared(request, 'rabbitmq')


@pytest.fixture(scope='session')
def quorum_bus(rabbitmq: tuple[servers.Server, str]) -> str:
    """A virtual host of its own, where queues may be of the durable kind."""
    return servers.new_vhost(*rabbitmq)


@pytest.fixture
def make_url(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Callable[..., str]:
    """Give a function that makes a database of a kind, with its tables."""

    def make(kind: str, empty: bool = False) -> str:
        base = f'sqlite:///{tmp_path}/'
        if kind != 'sqlite':
            base = request.getfixturevalue(kind)[1]
        return new_database(base) if empty else migrated_database(base)

    return make


@pytest.fixture(scope='session')
def idle_stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> IdleStores:
    """Stores that one test after the other uses."""

    def base(kind: str) -> str:
        if kind == 'sqlite':
            return f'sqlite:///{tmp_path_factory.mktemp("stores")}/'
        return str(request.getfixturevalue(kind)[1])

    return IdleStores(base)


@pytest.fixture
def make_store(
    idle_stores: IdleStores, make_url: Callable[..., str]
) -> Iterator[Callable[..., Store]]:
    """Give a function that makes a store with empty tables, by kind.

    It is for tests that leave the tables as they are, but for their rows;
    others say that the store has to be their *own*.
    """
    made: list[Store] = []
    lent: list[tuple[str, Store]] = []

    def make(kind: str = 'sqlite', own: bool = False) -> Store:
        if own:
            made.append(databases.connect(make_url(kind)))
            return made[-1]
        lent.append((kind, idle_stores.take(kind)))
        return lent[-1][1]

    yield make
    for store in made:
        store.dispose()
    for kind, store in lent:
        idle_stores.give(kind, store)
