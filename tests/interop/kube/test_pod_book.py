"""Two daemons of one store bind pods, and neither gives a device out twice."""

from __future__ import annotations

import collections
import signal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3

from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from tests.support import kube
from tests.support.stores import audit_findings
from tests.support.waiting import wait_until

DEVICE, CLASS = 'example.com/engine', 'CUSTOM_EXAMPLE_COM_ENGINE'
NODES = [f'engines-{number}' for number in range(20)]
THREADS = 16


@pytest.fixture
def nodes(cluster):
    """Nodes with two devices each."""
    cluster.create_nodes(kube.node(name, {DEVICE: '2'}) for name in NODES)
    yield NODES
    cluster.remove_pods()
    for name in NODES:
        cluster.call('DELETE', f'/api/v1/nodes/{name}')


@pytest.fixture
def daemons(make_store, start_daemon, nodes):
    """Two daemons that know the nodes."""
    store = make_store('postgresql')
    started = [start_daemon(store=store) for _ in range(2)]
    for daemon in started:
        daemon.wait_ready()
    wait_until(lambda: len(_used(store)) == len(nodes), 60)
    return started


def _used(store: Store) -> dict[str, int]:
    """Return how many devices are used of each node that has some."""
    with store.reading() as conn:
        return {
            host.host: host.resources[CLASS].used
            for host in loading.hosts(conn).values()
            if CLASS in host.resources
        }


def _claimed(store: Store) -> dict[str, str]:
    with store.reading() as conn:
        listed = claim_queries.listing(conn)
    return {row['request_id']: row['host'] for row in listed}


def _shown(cluster: Any) -> dict[str, str]:
    """Return the pods of the cluster that have a node."""
    return {f'default/{n}': node for n, node in cluster.placements().items()}


def _bind(daemon: Any, pod: Any, node: str) -> str:
    """Bind a pod; return why not, also where the daemon is gone."""
    asked = {'PodName': pod['metadata']['name'], 'PodNamespace': 'default',
             'PodUID': pod['metadata']['uid'], 'Node': node}  # fmt: skip
    url = f'http://127.0.0.1:{daemon.port}/extender/bind'
    try:
        reply = urllib3.request(
            'POST', url, json=asked, timeout=20, retries=False
        )
    except urllib3.exceptions.HTTPError as fault:
        return str(fault)
    return str(reply.json()['Error'])


def _create(cluster: Any, count: int) -> list[Any]:
    tag = uuid.uuid4().hex[:6]
    cluster.create_pods(
        kube.pod(f'{tag}-{n}', extended={DEVICE: '1'}, scheduler='nobody')
        for n in range(count)
    )
    return [
        one
        for one in cluster.pods()
        if one['metadata']['name'].startswith(tag)
    ]


def _most(cluster: Any) -> int:
    counts = collections.Counter(cluster.placements().values())
    return max(counts.values(), default=0)


def test_no_node_gets_a_third_pod_when_two_daemons_bind(cluster, daemons):
    store = daemons[0].store
    pods = _create(cluster, 4 * len(NODES))

    def bind(number: int) -> str:
        return _bind(daemons[number % 2], pods[number],
                     NODES[number // 4])  # fmt: skip

    with ThreadPoolExecutor(THREADS) as threads:
        refused = [e for e in threads.map(bind, range(len(pods))) if e]
    went = collections.Counter(cluster.placements().values())
    assert went == dict.fromkeys(NODES, 2)
    assert len(refused) == 2 * len(NODES)
    assert all('free' in error for error in refused), refused
    wait_until(lambda: _claimed(store) == _shown(cluster), 30)
    assert _used(store) == dict.fromkeys(NODES, 2)
    # Those that end make room for others, by the other daemon as well.
    cluster.remove_pods()
    wait_until(lambda: not any(_used(store).values()), 30)
    again = _create(cluster, 2)
    for daemon, pod in zip(daemons, again, strict=True):
        assert wait_until(lambda d=daemon, p=pod:
                          not _bind(d, p, NODES[0]), 30)  # fmt: skip
    assert not audit_findings(store)


def test_the_book_is_the_clusters_when_a_daemon_is_killed(cluster, daemons):
    store = daemons[0].store
    pods = _create(cluster, 6 * len(NODES))
    started = threading.Event()

    def bind(number: int) -> str:
        if number == len(pods) // 3:
            started.set()
        return _bind(daemons[number % 2], pods[number],
                     NODES[number // 6])  # fmt: skip

    with ThreadPoolExecutor(THREADS) as threads:
        binds = [threads.submit(bind, n) for n in range(len(pods))]
        started.wait(60)
        daemons[0].process.end(signal.SIGKILL)
        for one in binds:
            one.result()
    assert _most(cluster) <= 2
    # Its claims end that came to nothing, and the other daemon goes on.
    wait_until(lambda: _claimed(store) == _shown(cluster), 60)
    left = [one for one in cluster.pods() if not one['spec'].get('nodeName')]
    for at, pod in enumerate(left):
        _bind(daemons[1], pod, NODES[at % len(NODES)])
    assert _most(cluster) <= 2
    wait_until(lambda: _claimed(store) == _shown(cluster), 60)
    counts = collections.Counter(cluster.placements().values())
    assert _used(store) == {name: counts[name] for name in NODES}
    assert not audit_findings(store)
