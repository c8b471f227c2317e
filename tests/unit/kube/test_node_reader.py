"""Nodes of a cluster as hosts."""

from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.extender_wire import WireError
from scheduler_service.kube import node_reader as nodes
from scheduler_service.kube.node_reader import NodeReader
from scheduler_service.model import documents
from tests.support import kube

DOMAIN = 'd.example'
ZONE = 'topology.kubernetes.io/zone'


def reader(**labels: str) -> NodeReader:
    return NodeReader(DOMAIN, labels, ['example.com/draining'])


def read(*args: Any, **how: Any) -> nodes.NodeHost:
    return reader().read(kube.node('n', *args, **how))


def test_allocatable_becomes_inventories():
    size = {'cpu': '3920m', 'memory': '7Gi', 'example.com/fpga': '2'}
    host = read(size).host
    assert (host.host, host.vcpus, host.memory_mb) == ('n', 3, 7168)
    assert host.resources['CUSTOM_EXAMPLE_COM_FPGA'].total == 2
    assert nodes.is_node(host)


def test_labels_become_traits_and_metadata_by_the_mapping():
    mapping = {
        'example.com/ssd': 'trait.CUSTOM_SSD',
        'example.com/pool': 'metadata.pool',
        'rack': 'metadata',
        'feature.*': 'trait',
    }
    labels = {
        'example.com/ssd': 'true', 'example.com/pool': 'gold', 'rack': 'r7',
        'feature.a': 'true', 'feature.b': 'false', 'feature.c': 'v1.2',
        'other': 'x', ZONE: 'z', f'trait.{DOMAIN}/HW_A': 'true',
    }  # fmt: skip
    found = NodeReader(DOMAIN, mapping, ()).read(kube.node('n', labels=labels))
    assert found.host.traits == [
        'CUSTOM_FEATURE_A', 'CUSTOM_FEATURE_C_V1_2', 'CUSTOM_SSD', 'HW_A',
    ]  # fmt: skip
    assert found.metadata == {
        'pool': 'gold', 'rack': 'r7', 'availability_zone': 'z',
    }  # fmt: skip


@pytest.mark.parametrize('target', ['traits', 'trait.lower', 'label', ''])
def test_mapping_is_refused_when_a_target_is_not_one(target):
    with pytest.raises(errors.ConfigurationError, match='metadata and'):
        NodeReader(DOMAIN, {'a': target}, ())


@pytest.mark.parametrize(
    ('how', 'status', 'state'),
    [
        ({}, 'enabled', 'up'),
        ({'unschedulable': True}, 'disabled', 'up'),
        ({'ready': 'False'}, 'enabled', 'down'),
        ({'ready': 'Unknown'}, 'enabled', 'down'),
        (
            {'taints': [{'key': 'example.com/draining',
                         'effect': 'NoSchedule'}]},
            'disabled', 'up',
        ),
        (
            {'taints': [{'key': 'example.com/draining',
                         'effect': 'PreferNoSchedule'}]},
            'enabled', 'up',
        ),
        ({'taints': [{'key': 'other', 'effect': 'NoSchedule'}]}, 'enabled',
         'up'),
        (
            {'taints': [{'key': 'node.kubernetes.io/unreachable',
                         'effect': 'NoExecute'}]},
            'enabled', 'down',
        ),
    ],
)  # fmt: skip
def test_taints_and_conditions_become_status(how, status, state):
    host = read(**how).host
    assert (host.status, host.state) == (status, state)
    assert bool(host.disabled_reason) == (status == 'disabled')


def test_host_is_disabled_when_the_document_of_its_node_says_so():
    node = kube.node('n', unschedulable=True)
    document = '{"host": "n", "status": "disabled", "disabled_reason": "old"}'
    node['metadata']['annotations'] = {f'{DOMAIN}/host-document': document}
    reason = reader().read(node).host.disabled_reason
    assert reason == 'kubernetes: its document: old'
    assert not nodes.is_checked_by_scheduler(reason)
    for how in (
        {'unschedulable': True},
        {'taints': [{'key': 'example.com/draining', 'effect': 'NoSchedule'}]},
    ):
        reason = read(**how).host.disabled_reason
        assert nodes.is_checked_by_scheduler(reason)
    assert not nodes.is_checked_by_scheduler(None)


def test_node_is_down_when_its_network_is_not_there():
    node = kube.node('n')
    node['status']['conditions'].append(
        {'type': 'NetworkUnavailable', 'status': 'True'}
    )
    assert reader().read(node).host.state == 'down'


def test_aggregates_have_the_same_ids_every_time():
    found = [
        reader().read(kube.node(f'n{at}', labels={ZONE: zone}))
        for at, zone in enumerate('abb')
    ]
    made = {one.name: one for one in nodes.aggregates_of(found)}
    zone = made['kubernetes:availability_zone=b']
    assert zone.hosts == ['n1', 'n2']
    assert zone.metadata == {'availability_zone': 'b'}
    assert all(nodes.is_of_nodes(one) for one in made.values())
    assert nodes.aggregates_of(found[1:]) == [zone]


def test_list_of_nodes_is_an_inventory_that_can_be_imported():
    listed = {'kind': 'List', 'items': [kube.node('a'), kube.node('b')]}
    inventory = nodes.inventory_of(listed, reader())
    assert [host.host for host in inventory.hosts] == ['a', 'b']
    assert documents.check_entity(inventory.hosts[0])
    alone = nodes.inventory_of(kube.node('a'), reader())
    assert [host.host for host in alone.hosts] == ['a']
    with pytest.raises(WireError, match='items'):
        nodes.inventory_of({'kind': 'List'}, reader())
