"""One cluster of many nodes, and daemons that are extenders for it.

All of it is skipped, with the reason, where the programs of a control plane
are not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3

from scheduler_service.columns.table import Snapshot
from scheduler_service.store.connection import Store
from tests.support import control_plane, processes, requirements
from tests.support.databases import migrated_database
from tests.support.kube import Cluster
from tests.support.kube_nodes import NODES, SSD, new_node
from tests.support.processes import Process
from tests.support.servers import free_port
from tests.support.stores import load_snapshot
from tests.support.waiting import LIMIT_S, wait_until

# Between two reads of all hosts.
_PAUSE_S = 0.2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests as slow."""
    folder = pathlib.Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope='session')
def whole_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A control plane with its nodes."""
    if control_plane.missing():
        pytest.skip(control_plane.missing())
    requirements.need_library('kubernetes')
    with control_plane.cluster(tmp_path_factory.mktemp('kube')) as made:
        made.create_nodes(new_node(number) for number in range(NODES))
        yield made


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The same, without pods."""
    yield whole_cluster
    whole_cluster.remove_pods()


@dataclasses.dataclass
class Daemon:
    """A daemon as a process of its own.

    :ivar port: of its HTTP server
    :ivar config: its configuration file
    """

    process: Process
    port: int
    store: Store
    config: pathlib.Path

    def get(self, path: str) -> Any:
        """Return what a path of its HTTP server answers."""
        url = f'http://127.0.0.1:{self.port}{path}'
        reply = urllib3.request('GET', url, timeout=LIMIT_S, retries=False)
        return reply.data.decode()

    def snapshot(self) -> Snapshot:
        """Return what is in its store."""
        return load_snapshot(self.store)

    def wait_ready(self) -> Daemon:
        """Wait until it knows the nodes."""
        self.process.wait_for('Ready: ')
        wait_until(
            lambda: len(self.snapshot().hosts) >= NODES, pause_s=_PAUSE_S
        )
        return self


@pytest.fixture
def start_daemon(
    cluster: Cluster, tmp_path: pathlib.Path
) -> Iterator[Callable[..., Daemon]]:
    """Give a function that starts a daemon with more options."""
    with _daemons(cluster, tmp_path) as start:
        yield start


@pytest.fixture(scope='module')
def start_module_daemon(
    whole_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Daemon]]:
    """The same for a daemon that several tests of a module share."""
    with _daemons(whole_cluster, tmp_path_factory.mktemp('daemon')) as start:
        yield start


@pytest.fixture(scope='module')
def module_daemon(start_module_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that the tests of a module share; it knows the nodes."""
    return start_module_daemon().wait_ready()


@pytest.fixture
def daemon(cluster: Cluster, module_daemon: Daemon) -> Daemon:
    """The same, before a cluster without pods."""
    return module_daemon


@contextlib.contextmanager
def _daemons(
    cluster: Cluster, tmp_path: pathlib.Path
) -> Iterator[Callable[..., Daemon]]:
    running: list[Daemon] = []

    def start(
        like: Daemon | None = None, store: Store | None = None, **more: str
    ) -> Daemon:
        """Start one; *like* another: on its port, with its store."""
        port = like.port if like else free_port()
        if like is not None:
            store = like.store
        elif store is None:
            store = Store.connect(migrated_database(f'sqlite:///{tmp_path}/'))
        options = {
            'DEFAULT__transport_url': 'inproc://',
            'database__connection': store.engine.url.render_as_string(
                hide_password=False
            ),
            'http__bind_port': str(port),
            'extender__api_server': cluster.url,
            'extender__api_ca_file': cluster.ca_file,
            'extender__api_token_file': cluster.token_file(),
            'kubernetes__enabled': 'true',
            'kubernetes__labels': f'{SSD}:trait.CUSTOM_SSD',
            **more,
        }  # fmt: skip
        path = tmp_path / f'{len(running)}.conf'
        path.write_text(_text(options))
        running.append(Daemon(processes.launch(path), port, store, path))
        return running[-1]

    try:
        yield start
    finally:
        for one in running:
            one.process.remove()
            one.store.dispose()


def _text(options: dict[str, str]) -> str:
    """Return options, ``group__name`` -> value, as a configuration file."""
    lines: list[str] = []
    for name, value in sorted(options.items()):
        group, _, option = name.rpartition('__')
        lines += [f'[{group}]', f'{option} = {value}']
    return '\n'.join(lines)
