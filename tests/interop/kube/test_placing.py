"""Where a real kube-scheduler puts pods when it asks a daemon."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest
import urllib3

from scheduler_service.store.records import decision_list
from tests.support import extenders, kube
from tests.support.extenders import Reply
from tests.support.kube_nodes import (
    FPGA,
    FPGA_NODES,
    LARGER,
    NODES,
    SSD_NODES,
    asking_for_ssd,
)
from tests.support.waiting import LIMIT_S, wait_until

DEVICE = 'example.com/device'


def test_no_host_gets_more_than_its_share_of_equal_pods(cluster, daemon):
    with cluster.scheduler(kube.entry(daemon.port)):
        cluster.create_pods(kube.pod(f'equal-{n}') for n in range(150))
        went = collections.Counter(cluster.wait_bound(150).values())
    # A share is less than a pod: its next whole number.
    assert max(went.values()) <= math.ceil(1.1 * 150 / NODES)
    assert sum(went[f'node-{n}'] for n in LARGER) <= len(LARGER)


def test_pods_spread_where_they_are_bound_and_not_followed(
    cluster, start_daemon
):
    first = start_daemon().wait_ready()
    first.process.end()
    daemon = start_daemon(first, kubernetes__enabled='false').wait_ready()
    # Pods were listed once: now their use counts.
    wait_until(lambda: 10 in _scores(daemon, 'node-100', 'node-101'))
    with cluster.scheduler(kube.entry(daemon.port, bindVerb='bind')):
        cluster.create_pods(kube.pod(f'bound-{n}') for n in range(60))
        went = collections.Counter(cluster.wait_bound(60).values())
    assert max(went.values()) == 1


def _scores(daemon, *nodes):
    """Return the scores of nodes for a pod that is not to be placed."""
    url = f'http://127.0.0.1:{daemon.port}/extender/prioritize'
    asked = {'Pod': kube.pod('none'), 'NodeNames': nodes}
    reply = urllib3.request('POST', url, json=asked, timeout=LIMIT_S)
    return [one['Score'] for one in reply.json()]


@pytest.mark.parametrize('names', [True, False], ids=['names', 'objects'])
def test_pods_go_only_where_filters_let_them(cluster, daemon, names):
    entry = kube.entry(daemon.port, nodeCacheCapable=names)
    with cluster.scheduler(entry):
        cluster.create_pods(asking_for_ssd(f'ssd-{n}') for n in range(20))
        went = cluster.wait_bound(20)
    assert set(went.values()) <= SSD_NODES


def test_resource_is_counted_when_the_scheduler_ignores_it(cluster, daemon):
    managed = [{'name': FPGA, 'ignoredByScheduler': True}]
    entry = kube.entry(daemon.port, managedResources=managed, bindVerb='bind')
    with cluster.scheduler(entry, percentage=100):
        cluster.create_pods(
            kube.pod(f'fpga-{n}', extended={FPGA: '1'}) for n in range(12)
        )
        went = cluster.wait_bound(len(FPGA_NODES))
        left = [f'fpga-{n}' for n in range(12) if f'fpga-{n}' not in went]
        for name in left:
            reason = wait_until(lambda one=name: cluster.refusal(one))
            assert (
                'FPGA requested' in reason or 'nodes are available' in reason
            )
        # A pod that is gone makes room for one that waits.
        gone = next(iter(went))
        path = f'/api/v1/namespaces/default/pods/{gone}'
        cluster.call('DELETE', f'{path}?gracePeriodSeconds=0')
        went = wait_until(lambda: _other_than(cluster, went))
    assert collections.Counter(went.values()) == dict.fromkeys(FPGA_NODES, 1)
    assert '/extender/bind' in daemon.get('/metrics')


def test_resource_that_no_node_offers_is_left_to_others(cluster, daemon):
    ignored = {'ignoredResources': [DEVICE]}
    profile = {
        'schedulerName': kube.SCHEDULER,
        'pluginConfig': [{'name': 'NodeResourcesFit', 'args': ignored}],
    }
    with cluster.scheduler(kube.entry(daemon.port), profiles=[profile]):
        cluster.create_pods([kube.pod('wants', extended={DEVICE: '1'})])
        assert list(cluster.wait_bound(1)) == ['wants']


def test_pod_that_is_never_placed_keeps_no_device_from_others(
    cluster, start_daemon
):
    """The later step is an extender behind ours, which refuses it."""
    # Longer than the test: what is assumed does not end by itself.
    daemon = start_daemon(kubernetes__assume_seconds='600').wait_ready()
    cluster.create_nodes([kube.node('single', {DEVICE: '1'})])
    refused = 0

    def refuse_one(verb: str, asked: Any) -> Reply:
        nonlocal refused
        if asked['Pod']['metadata']['name'] != 'never':
            return extenders.pass_all(verb, asked)
        refused += 1
        return extenders.pass_only()(verb, asked)

    try:
        with extenders.extender(refuse_one) as later, cluster.scheduler(
            kube.entry(daemon.port, bindVerb='bind'), extenders.entry(later)
        ):  # fmt: skip
            # One is bound, so it is known that this service binds.
            cluster.create_pods([kube.pod('first')])
            cluster.wait_bound(1)
            cluster.create_pods([kube.pod('never', extended={DEVICE: '1'})])
            # Once more, so that it was assumed again, too.
            wait_until(lambda: refused >= 2)
            cluster.create_pods([kube.pod('wants', extended={DEVICE: '1'})])
            assert cluster.wait_bound(2)['wants'] == 'single'
    finally:
        cluster.call('DELETE', '/api/v1/nodes/single')


def _other_than(cluster, before):
    """Return where pods are, once as many as before are and not the same."""
    found = cluster.placements()
    return found if len(found) == len(before) and found != before else None


def test_preemption_leaves_out_nodes_that_never_pass(cluster, daemon):
    # One has the trait, the other has not.
    nodes = ['node-20', 'node-21']
    entry = kube.entry(daemon.port, preemptVerb='preempt')
    place = {'requiredDuringSchedulingIgnoredDuringExecution': {
        'nodeSelectorTerms': [{'matchFields': [{
            'key': 'metadata.name', 'operator': 'In', 'values': [name]}]}
            for name in nodes]}}  # fmt: skip
    for name, value in (('low', 1), ('high', 1000)):
        cluster.send('POST', '/apis/scheduling.k8s.io/v1/priorityclasses', {
            'metadata': {'name': name}, 'value': value,
        })  # fmt: skip
    most = {'cpu': '20', 'memory': '1Gi'}
    with cluster.scheduler(entry):
        cluster.create_pods(
            kube.pod(
                f'low-{name}', most, priorityClassName='low',
                nodeSelector={'kubernetes.io/hostname': name},
                terminationGracePeriodSeconds=0,
            )
            for name in nodes
        )  # fmt: skip
        cluster.wait_bound(2)
        high = asking_for_ssd(
            'high', requests=most, priorityClassName='high',
            affinity={'nodeAffinity': place},
        )  # fmt: skip
        cluster.create_pods([high])
        wait_until(lambda: 'high' in cluster.placements())
        went = cluster.placements()
    assert went == {'low-node-21': 'node-21', 'high': 'node-20'}


def test_device_freed_by_preemption_is_not_given_away(cluster, daemon):
    """Ours alone counts the device, and nobody else would keep it."""
    managed = [{'name': FPGA, 'ignoredByScheduler': True}]
    entry = kube.entry(daemon.port, managedResources=managed, bindVerb='bind')
    cluster.create_pods([kube.pod('waits', extended={FPGA: '1'})])
    waiting = cluster.pods()[0]
    cluster.call(
        'PATCH', '/api/v1/namespaces/default/pods/waits/status',
        {'status': {'nominatedNodeName': 'node-10'}},
        **{'Content-Type': 'application/merge-patch+json'},
    )  # fmt: skip

    def passed(pod: Any) -> Any:
        url = f'http://127.0.0.1:{daemon.port}/extender/filter'
        asked = {'Pod': pod, 'NodeNames': ['node-10']}
        return urllib3.request('POST', url, json=asked).json()['NodeNames']

    assert 'node-10' in FPGA_NODES
    other = kube.pod('other', extended={FPGA: '1'})
    other['metadata']['uid'] = 'other'
    wait_until(lambda: passed(other) == [])
    assert passed(waiting) == ['node-10']
    # It would evict the other at once.
    higher = {**other, 'spec': {**other['spec'], 'priority': 1}}
    assert passed(higher) == ['node-10']
    with cluster.scheduler(entry):
        assert cluster.wait_bound(1)['waits'] == 'node-10'
    assert passed(other) == []
    cluster.remove_pods()
    wait_until(lambda: passed(other) == ['node-10'])


def test_pods_have_decisions_but_for_those_of_the_cluster_itself(
    cluster, daemon
):

    def found(pod: str) -> list[tuple[str, str]]:
        wanted = decision_list.DecisionFilter(pod=pod)
        with daemon.store.reading() as conn:
            rows = decision_list.search(conn, wanted)
        return [(row.kind, row.outcome) for row in rows]

    # It has no SSD.
    place = {'nodeSelector': {'kubernetes.io/hostname': 'node-21'}}
    both = [('pod_prioritize', 'ordered'), ('pod_filter', 'passed')]
    with cluster.scheduler(kube.entry(daemon.port)):
        cluster.create_pods([asking_for_ssd('agent', **place)], 'kube-system')
        cluster.create_pods(
            [asking_for_ssd('refused', **place), asking_for_ssd('placed')]
        )
        went = cluster.wait_bound(1)
        system = cluster.wait_bound(1, namespace='kube-system')
        # The scheduler may come to this pod last.
        wait_until(
            lambda: ('pod_filter', 'NoValidHost') in found('default/refused'),
        )
    cluster.remove_pods('kube-system')
    assert list(went) == ['placed']
    assert system == {'agent': 'node-21'}
    wait_until(lambda: found('default/placed') == both)
    assert found('kube-system/agent') == []


def test_only_a_scheduler_with_a_certificate_is_served(cluster, start_daemon):
    pki = cluster.pki
    daemon = start_daemon(
        http__cert_file=str(pki / 'extender.crt'),
        http__key_file=str(pki / 'extender.key'),
        http__ca_file=str(pki / 'ca.crt'),
    ).wait_ready()
    authority = {'caFile': str(pki / 'ca.crt')}
    shown = {
        'certFile': str(pki / 'client.crt'),
        'keyFile': str(pki / 'client.key'),
    }

    def entry(tls: dict[str, str]) -> dict[str, Any]:
        return kube.entry(
            daemon.port, enableHTTPS=True, tlsConfig=tls,
            urlPrefix=f'https://127.0.0.1:{daemon.port}/extender',
        )  # fmt: skip

    with cluster.scheduler(entry(authority)):
        cluster.create_pods([asking_for_ssd('secret')])
        assert wait_until(lambda: cluster.refusal('secret'))
        assert cluster.placements() == {}
    with cluster.scheduler(entry({**authority, **shown})):
        assert set(cluster.wait_bound(1).values()) <= SSD_NODES
