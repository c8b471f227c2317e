"""What pods take of their nodes, as a real kube-scheduler counts it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from scheduler_service.kube import pod_reader, quantity
from tests.support import kube, pod_amounts
from tests.support.waiting import wait_until

SCHEDULER = 'counting'
MERGE = {'Content-Type': 'application/merge-patch+json'}
# What is asked beside the pod: the first fits, and the second does not.
LEFT = {'exact': Decimal('0.1'), 'short': Decimal('0.099')}


def test_kube_scheduler_counts_pods_as_this_service_does(cluster):
    overhead = {'podFixed': {'cpu': '250m'}}
    cluster.call('POST', '/apis/node.k8s.io/v1/runtimeclasses', {
        'metadata': {'name': pod_amounts.HEAVY}, 'handler': 'none',
        'overhead': overhead,
    })  # fmt: skip
    probes = {}
    nodes = [f'{case}-{left}' for case in pod_amounts.CASES for left in LEFT]
    try:
        for case in pod_amounts.CASES:
            for left, free in LEFT.items():
                name = f'{case}-{left}'
                counted = _place(cluster, case, name, free)
                assert counted == quantity.parse(pod_amounts.CASES[case][1])
                probes[f'probe-{name}'] = kube.pod(
                    f'probe-{name}', {'cpu': '100m'}, scheduler=SCHEDULER,
                    nodeSelector={'kubernetes.io/hostname': name},
                )  # fmt: skip
        cluster.create_pods(probes.values())
        with cluster.scheduler(name=SCHEDULER):
            for name in probes:
                wait_until(lambda n=name: _decided(cluster, n))
        placed = cluster.placements()
        fits = {name for name in probes if name in placed}
        assert fits == {name for name in probes if name.endswith('exact')}
    finally:
        cluster.remove_pods()
        for name in nodes:
            cluster.send('DELETE', f'/api/v1/nodes/{name}')
        cluster.call(
            'DELETE',
            f'/apis/node.k8s.io/v1/runtimeclasses/{pod_amounts.HEAVY}',
        )


def _place(cluster: Any, case: str, node: str, free: Decimal) -> Decimal:
    """Have a pod on a node of its own, with so much left; say what counts."""
    made = pod_amounts.pod(case)
    amount = quantity.parse(pod_amounts.CASES[case][1]) + free
    cluster.create_nodes([kube.node(node, {'cpu': str(amount)})])
    made['metadata']['name'], made['spec']['nodeName'] = node, node
    cluster.create_pods([made])
    path = f'/api/v1/namespaces/default/pods/{node}'
    cluster.call(
        'PATCH', f'{path}/status', {'status': made['status']}, **MERGE
    )
    read = pod_reader.read(json.dumps(cluster.call('GET', path)).encode())
    return pod_reader.pod_amounts(read)['cpu']


def _decided(cluster: Any, name: str) -> bool:
    return name in cluster.placements() or 'Insufficient cpu' in (
        cluster.refusal(name)
    )
