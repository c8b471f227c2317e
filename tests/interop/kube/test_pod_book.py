"""Daemons of one store bind pods, and nothing is given out twice."""

from __future__ import annotations

import collections
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3

from tests.rigs import faults, kube_chaos
from tests.rigs.kube_chaos import CLASS, DEVICE, NODES, KubeCloud
from tests.support import kube, servers
from tests.support.stores import load_snapshot
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until

# A second bind comes so much later, in seconds.
DELAYS = 0.0, 0.005, 0.01


@pytest.fixture
def two(cluster, postgresql):
    """Two daemons that know nodes with two devices each."""
    with kube_chaos.cloud(postgresql[1], 'inproc://', cluster) as made:
        yield made


def _used(made: KubeCloud) -> list[int]:
    """Return how many devices are used of each node that has some."""
    columns = load_snapshot(made.store).hosts.resources[CLASS]
    used: list[int] = columns.used[columns.total > 0].tolist()
    return used


def _bind(port: int, pod: Any, node: str) -> str:
    """Bind a pod at one of the daemons; return why not."""
    asked = {'PodName': pod['metadata']['name'], 'PodNamespace': 'default',
             'PodUID': pod['metadata']['uid'], 'Node': node}  # fmt: skip
    url = f'http://127.0.0.1:{port}/extender/bind'
    reply = urllib3.request(
        'POST', url, json=asked, timeout=LIMIT_S, retries=False
    )
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


def test_the_last_device_goes_to_one_pod_whichever_daemon_binds(two):
    ports = two.address.targets
    pods = _create(two.cluster, 3 * len(NODES))

    def bind(number: int) -> str:
        turn, at = divmod(number, len(NODES))
        if turn == 2:
            time.sleep(DELAYS[at % len(DELAYS)])
        return _bind(ports[turn % 2], pods[number], NODES[at])

    refused = [bind(at) for at in range(len(NODES))]
    assert not any(refused)
    with ThreadPoolExecutor(2) as threads:
        for at in range(len(NODES)):
            both = at + len(NODES), at + 2 * len(NODES)
            refused += [error for error in threads.map(bind, both) if error]
    errors = [error for error in refused if error]
    assert len(errors) == len(NODES)
    assert all('free' in error for error in errors), errors
    went = collections.Counter(two.cluster.placements().values())
    assert went == dict.fromkeys(NODES, 2)
    assert two.books() == []
    # Those that end make room for others, by the other daemon as well.
    two.cluster.remove_pods()
    wait_until(lambda: not any(_used(two)))
    for port, pod in zip(ports, _create(two.cluster, 2), strict=True):
        assert wait_until(lambda d=port, p=pod: not _bind(d, p, NODES[0]))


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_instances_and_pods_share_hosts_when_daemons_die(
    cluster, postgresql, rabbitmq
):
    bus = servers.new_vhost(*rabbitmq)
    with kube_chaos.cloud(postgresql[1], bus, cluster, shared=True) as made:
        told = kube_chaos.run(
            made, seed=13, broker=None, database=None, callers=1,
            seconds=12 * SLOWNESS, every=1, least_faults=4,
            least_placed=21, least_bound=21, quiet_s=2.0,
        )  # fmt: skip
    assert {'kill', 'restart_scheduler'} <= told['faults'].keys()
    faults.check(told)


def test_no_pod_is_lost_or_bound_unclaimed_without_the_database(cluster):
    with (
        servers.postgresql() as (server, base),
        kube_chaos.cloud(base, 'inproc://', cluster, devices=20) as made,
    ):
        told = kube_chaos.outage(made, server, 20, 1.0, 3.0)
        faults.check(told)
        assert told['pods'] >= 100
        # What another binds is seen, and not claimed before.
        [pod] = _create(cluster, 1)
        path = f'/api/v1/namespaces/default/pods/{pod["metadata"]["name"]}'
        cluster.call('POST', f'{path}/binding', {
            'metadata': {'name': pod['metadata']['name']},
            'target': {'kind': 'Node', 'name': NODES[0]},
        })  # fmt: skip
        wait_until(lambda: kube_chaos.reported(made) == 1)
