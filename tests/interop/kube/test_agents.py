"""Pods that go to nodes on which others may not run, as agents have to."""

import json
import subprocess
import sys
from typing import Any

import pytest
import urllib3

from tests.support import kube
from tests.support.kube_nodes import NODES as CLUSTER_NODES
from tests.support.waiting import LIMIT_S, wait_until

NAMESPACE = 'agents'
OWN = 'example.com/ours'
NOT_READY = 'node.kubernetes.io/not-ready'
NO_NETWORK = 'node.kubernetes.io/network-unavailable'
CORDONED = 'node.kubernetes.io/unschedulable'


def taint(key: str, effect: str = 'NoSchedule') -> dict[str, str]:
    return {'key': key, 'effect': effect}


# Nothing adds the taints of conditions here, so they are there from the start.
NODES = {
    'new-node': kube.node(
        'new-node', ready='False',
        taints=[taint(NOT_READY), taint(NOT_READY, 'NoExecute'),
                taint(NO_NETWORK)],
    ),
    'cordoned-node': kube.node(
        'cordoned-node', unschedulable=True, taints=[taint(CORDONED)]
    ),
    'own-node': kube.node('own-node', taints=[taint(OWN)]),
}  # fmt: skip
NODES['new-node']['status']['conditions'].append(
    {'type': 'NetworkUnavailable', 'status': 'True'}
)
ALL = [{'operator': 'Exists'}]
# Name of a pod -> its node, and what it tolerates.
AGENTS: dict[str, tuple[str, list[dict[str, str]]]] = {
    'cni': (
        'new-node',
        [{'key': key, 'operator': 'Exists'}
         for key in (NOT_READY, NO_NETWORK)],
    ),
    'agent': ('cordoned-node', [{'key': CORDONED, 'operator': 'Exists'}]),
    'own': ('own-node', [{'key': OWN, 'operator': 'Exists'}]),
    **{f'any-{name}': (name, ALL) for name in NODES},
}  # fmt: skip


def agent(name: str, node: str, tolerations: Any) -> dict[str, Any]:
    return kube.pod(
        name, nodeSelector={'kubernetes.io/hostname': node},
        tolerations=tolerations,
    )  # fmt: skip


@pytest.fixture
def with_nodes(cluster, daemon):
    cluster.send('POST', '/api/v1/namespaces', {
        'metadata': {'name': NAMESPACE},
    })  # fmt: skip
    cluster.create_nodes(NODES.values())
    yield cluster
    cluster.remove_pods(NAMESPACE)
    for name in NODES:
        cluster.call('DELETE', f'/api/v1/nodes/{name}')
    # What an operator said of them goes with the hosts.
    wait_until(
        lambda: len(daemon.snapshot().hosts) == CLUSTER_NODES, pause_s=0.1
    )


def wait_for_hosts(daemon: Any) -> None:
    """Wait until a daemon knows the nodes that were just created."""
    wait_until(
        lambda: all(
            daemon.snapshot().hosts.row_of_node(name, name) is not None
            for name in NODES
        ),
        pause_s=0.1,
    )


def run_command(*words: str) -> None:
    """Run scheduler-manage; it sets up logging for its whole process."""
    subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.manage', *words],
        check=True, timeout=LIMIT_S,
    )  # fmt: skip


@pytest.fixture(scope='module')
def daemon(start_module_daemon):
    return start_module_daemon(kubernetes__disabling_taints=OWN).wait_ready()


@pytest.mark.parametrize('names', [True, False], ids=['names', 'objects'])
def test_agents_get_to_nodes_on_which_others_may_not_run(
    with_nodes, daemon, names
):
    wait_for_hosts(daemon)
    entry = kube.entry(daemon.port, nodeCacheCapable=names)
    with with_nodes.scheduler(entry):
        with_nodes.create_pods(
            (agent(name, *how) for name, how in AGENTS.items()), NAMESPACE
        )
        went = with_nodes.wait_bound(len(AGENTS), namespace=NAMESPACE)
    assert went == {name: node for name, (node, _) in AGENTS.items()}
    # For callers over RPC none of these is a host to choose.
    table = daemon.snapshot().hosts
    for name in NODES:
        assert not table.available()[table.row_of_node(name, name)]


def test_agents_stay_away_from_a_host_that_an_operator_disabled(
    with_nodes, daemon
):
    wait_for_hosts(daemon)
    run_command(
        '--config-file', str(daemon.config), 'host', 'disable',
        'cordoned-node', '--reason', 'broken',
    )  # fmt: skip
    with with_nodes.scheduler(kube.entry(daemon.port)):
        wait_until(lambda: 'broken' in _refusals(daemon))
        # Its own namespace keeps it from the pods of other tests.
        with_nodes.create_pods(
            [agent('refused', 'cordoned-node', ALL),
             agent('taken', 'new-node', ALL)],
            NAMESPACE,
        )  # fmt: skip
        refused = wait_until(lambda: with_nodes.refusal('refused', NAMESPACE))
        went = with_nodes.wait_bound(1, namespace=NAMESPACE)
    assert 'the host is disabled (broken)' in refused
    assert went == {'taken': 'new-node'}


def _refusals(daemon: Any) -> str:
    """Return why nodes are refused to a pod that is not to be placed."""
    url = f'http://127.0.0.1:{daemon.port}/extender/filter'
    asked = {'Pod': kube.pod('none'), 'NodeNames': [*NODES]}
    reply = urllib3.request('POST', url, json=asked, timeout=LIMIT_S)
    return json.dumps(reply.json())
