"""A daemon follows the nodes and pods of a real API server."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib import parse

import pytest

from scheduler_service.engine.health import Health
from scheduler_service.kube.api import Address, ApiServer
from scheduler_service.kube.nodes import Follower
from scheduler_service.kube.pod_reader import PodReader
from scheduler_service.kube.pod_use import SELECTOR, PodSink, PodUse
from scheduler_service.store.connection import Store
from tests.support import control_plane, kube
from tests.support.databases import migrated_database
from tests.support.kube_nodes import NODES
from tests.support.stores import load_snapshot
from tests.support.tcp_proxy import Mode, TcpProxy
from tests.support.waiting import LIMIT_S, wait_until

MERGE = {'Content-Type': 'application/merge-patch+json'}


def bind(cluster: Any, name: str, node: str) -> None:
    """Bind a pod as a scheduler does."""
    path = f'/api/v1/namespaces/default/pods/{name}/binding'
    cluster.call('POST', path, {
        'metadata': {'name': name},
        'target': {'kind': 'Node', 'name': node},
    })  # fmt: skip


def run_command(*words: str) -> None:
    """Run scheduler-manage; it sets up logging for its whole process."""
    subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.manage', *words],
        check=True, timeout=LIMIT_S,
    )  # fmt: skip


def patch(cluster: Any, node: str, document: Any) -> None:
    cluster.call('PATCH', f'/api/v1/nodes/{node}', document, **MERGE)


def host_of(daemon: Any, name: str) -> Any:
    """Return (enabled, up, zone) of a host in the store; None: no host."""
    table = daemon.snapshot().hosts
    row = table.row_of_node(name, name)
    if row is None:
        return None
    return (
        bool(table.number('enabled')[row]),
        bool(table.number('up')[row]),
        table.zone_at(row, 'none'),
    )


def test_hosts_follow_the_nodes_but_for_what_an_operator_says(
    cluster, start_daemon
):
    daemon = start_daemon().wait_ready()
    assert len(daemon.snapshot().hosts) == NODES
    new = kube.node('new', labels={'topology.kubernetes.io/zone': 'north'})
    cluster.create_nodes([new])

    def is_now(*expected: Any) -> None:
        wait_until(lambda: host_of(daemon, 'new') == expected, pause_s=0.1)

    try:
        is_now(True, True, 'north')
        patch(cluster, 'new', {'spec': {'unschedulable': True}})
        is_now(False, True, 'north')
        patch(cluster, 'new', {'spec': {'unschedulable': None}})
        is_now(True, True, 'north')
        patch(cluster, 'new/status', {'status': {'conditions': [
            {'type': 'Ready', 'status': 'Unknown'}]}})  # fmt: skip
        is_now(True, False, 'north')
        zone = {'topology.kubernetes.io/zone': 'south'}
        patch(cluster, 'new', {'metadata': {'labels': zone}})
        is_now(True, False, 'south')
        # A node that can be scheduled does not enable its host again.
        run_command(
            '--config-file', str(daemon.config), 'host', 'disable', 'new'
        )
        zone = {'topology.kubernetes.io/zone': 'moved'}
        patch(cluster, 'new', {'metadata': {'labels': zone}})
        is_now(False, False, 'moved')
    finally:
        cluster.call('DELETE', '/api/v1/nodes/new')
    wait_until(lambda: host_of(daemon, 'new') is None, pause_s=0.1)
    # What went while nobody looked goes at the next start.
    cluster.create_nodes([new])
    is_now(True, True, 'north')
    daemon.process.end()
    cluster.call('DELETE', '/api/v1/nodes/new')
    start_daemon(daemon)
    wait_until(lambda: host_of(daemon, 'new') is None, pause_s=0.1)


def test_nodes_are_imported_once_from_an_api_server(cluster, tmp_path):
    url = migrated_database(f'sqlite:///{tmp_path}/')
    config = tmp_path / 'a.conf'
    config.write_text(f'[database]\nconnection = {url}\n')
    run_command(
        '--config-file', str(config), 'inventory', 'import',
        '--from-kubeconfig', cluster.kubeconfig,
    )  # fmt: skip
    store = Store.connect(url)
    assert len(load_snapshot(store).hosts) == NODES
    store.dispose()


class Followed:
    """Pods that are followed through a proxy."""

    def __init__(self, cluster: Any) -> None:
        self.proxy = TcpProxy(parse.urlsplit(cluster.url).port or 0)
        self.health = Health()
        self.use = PodUse(60.0)
        self.address = address = Address(
            url=f'https://127.0.0.1:{self.proxy.port}',
            token_file=cluster.token_file(),
            ca_file=cluster.ca_file,
        )
        self.follower = Follower(
            ApiServer(address, watch_seconds=3), 'pods', SELECTOR,
            PodSink(self.use, PodReader('d')), self.health,
        )  # fmt: skip
        self.follower.start()

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.use.count()[0] == count)

    def on(self, *nodes: str) -> list[float]:
        """Return how many pods are counted on each of some nodes."""
        found: list[float] = self.use.used(
            'pods', self.use.numbers_of(nodes)
        ).tolist()
        return found

    def uids(self) -> list[str]:
        return [*self.use._pods]

    def is_lost(self) -> bool:
        return any('not followed' in one for one in self.health.degraded)

    def relists(self) -> int:
        counts = self.health.counters().get('kubernetes_relists', {})
        return int(counts.get('pods', 0))

    def close(self) -> None:
        self.proxy.close()
        self.follower.stop(LIMIT_S)


@contextlib.contextmanager
def followed(cluster: Any) -> Iterator[Followed]:
    made = Followed(cluster)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize('mode', [Mode.REFUSE, Mode.FORWARD])
def test_pods_are_followed_when_the_api_server_comes_back(cluster, mode):
    """In between, what was known is kept; nothing is missed or relisted."""
    cluster.create_pods(kube.pod(f'p-{n}', scheduler='none') for n in 'abc')
    bind(cluster, 'p-a', 'node-1')
    with followed(cluster) as pods:
        pods.wait_for(1)
        wait_until(lambda: not pods.is_lost())
        pods.proxy.become(mode)
        if mode is Mode.REFUSE:
            wait_until(lambda: pods.is_lost())
        assert pods.use.count() == (1, 0)
        bind(cluster, 'p-b', 'node-1')
        cluster.call('DELETE', '/api/v1/namespaces/default/pods/p-a'
                     '?gracePeriodSeconds=0')  # fmt: skip
        bind(cluster, 'p-c', 'node-2')
        pods.proxy.become(Mode.FORWARD)
        wait_until(lambda: pods.on('node-1', 'node-2') == [1, 1])
        wait_until(lambda: not pods.is_lost())
        assert pods.relists() == 0


def test_api_server_that_hangs_is_noticed(cluster):
    cluster.create_pods(kube.pod(f'p-{n}', scheduler='none') for n in 'ab')
    bind(cluster, 'p-a', 'node-1')
    with followed(cluster) as pods:
        pods.wait_for(1)
        pods.proxy.become(Mode.BLACK_HOLE)
        wait_until(pods.is_lost)
        bind(cluster, 'p-b', 'node-1')
        assert pods.use.count() == (1, 0)
        pods.proxy.become(Mode.FORWARD)
        pods.wait_for(2)
        wait_until(lambda: not pods.is_lost())


def test_pods_are_listed_anew_when_a_version_is_too_old(cluster):
    cluster.create_pods(kube.pod(f'p-{n}', scheduler='none') for n in 'ab')
    bind(cluster, 'p-a', 'node-1')
    with followed(cluster) as pods:
        pods.wait_for(1)
        pods.proxy.become(Mode.REFUSE)
        bind(cluster, 'p-b', 'node-1')
        cluster.call('DELETE', '/api/v1/namespaces/default/pods/p-a'
                     '?gracePeriodSeconds=0')  # fmt: skip
        control_plane.restart_api_server(cluster)
        pods.proxy.become(Mode.FORWARD)
        wait_until(pods.relists)
        wait_until(lambda: pods.uids() == [uid_of(cluster, 'p-b')])


def test_pods_are_followed_with_replaced_credentials(cluster):
    cluster.create_pods(kube.pod(f'p-{n}', scheduler='none') for n in 'ab')
    bind(cluster, 'p-a', 'node-1')
    with followed(cluster) as pods:
        pods.wait_for(1)
        before = pods.follower._api
        api = ApiServer(pods.address, watch_seconds=3)
        assert api.identity == before.identity
        pods.follower.use(api)
        wait_until(lambda: pods.follower._api is api)
        bind(cluster, 'p-b', 'node-1')
        pods.wait_for(2)
        assert not pods.is_lost()


def uid_of(cluster: Any, name: str) -> str:
    path = f'/api/v1/namespaces/default/pods/{name}'
    return str(cluster.call('GET', path)['metadata']['uid'])
