"""Inventory documents."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents

UUID = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


@pytest.mark.parametrize(
    ('document', 'message'),
    [
        (
            {'hosts': [{'host': 'a'}] * 1 + [{'host': 'b', 'memory_mb': 'x'}]},
            'hosts[1].memory_mb: expected an integer >= 0, got "x"',
        ),
        (
            {'hosts': [{'host': 'a', 'memory_mb': -1}]},
            'hosts[0].memory_mb: expected an integer >= 0, got -1',
        ),
        (
            {'hosts': [{'host': 'a', 'cpus': 1}]},
            'hosts[0].cpus: unknown key; is vcpus meant?',
        ),
        ({'hosts': [{}]}, 'hosts[0].host: required, but absent'),
        (
            {'hosts': [{'host': 'a', 'state': 'x'}]},
            'hosts[0].state: "x" is not one of down, up',
        ),
        (
            {'hosts': [{'host': 'a'}, {'host': 'a'}]},
            'hosts[1].host: a is a duplicate of hosts[0]',
        ),
        (
            {'pools': [{'id': UUID, 'name': 'a'}, {'id': UUID, 'name': 'b'}]},
            f'pools[1].id: {UUID} is a duplicate of pools[0]',
        ),
        (
            {'server_groups': [{'uuid': UUID, 'rules': {'x': 1}}]},
            'server_groups[0].rules: expected the keys max_server_per_host '
            'only, got {"x":1}',
        ),
        (
            {'hosts': [{'host': 'a', 'traits': ['a b']}]},
            'hosts[0].traits[0]: expected a string of A-Z, 0-9 and _, '
            'got "a b"',
        ),
        (
            {'pools': [{'id': 'x', 'name': 'a'}]},
            'pools[0].id: expected a string that is a UUID, got "x"',
        ),
        (
            {'hosts': [{'host': 'a'}, {'host': 'b', 'pci_device_pools': [
                {'count': 1}, {'count': 'abc'}]}]},
            'hosts[1].pci_device_pools[1].count: expected an integer >= 0 or '
            'null, got "abc"',
        ),
        (
            {'hosts': [{'host': 'a', 'pci_device_pools': [{'tags': [1]}]}]},
            'hosts[0].pci_device_pools[0].tags: expected an object or null, '
            'got [1]',
        ),
        (
            {'hosts': [{'host': 'a', 'numa_topology': {'cells': [
                {'mempages': [{'size_kb': 0, 'total': 1}]}]}}]},
            'hosts[0].numa_topology.cells[0].mempages[0].size_kb: expected an '
            'integer >= 1, got 0',
        ),
        (
            {'hosts': [{'host': 'a', 'numa_topology': {'cells': [
                {'siblings': [1]}]}}]},
            'hosts[0].numa_topology.cells[0].siblings[0]: expected a list, '
            'got 1',
        ),
        (
            {'hosts': [{'host': 'a', 'metrics': [
                {'name': 'load', 'value': 1e308}]}]},
            'hosts[0].metrics[0].value: expected a number <= '
            '1000000000000000.0, got 1e308',
        ),
        *(
            (
                {'aggregates': [{'id': 1, 'metadata': {key: text}}]},
                f'aggregates[0].metadata.{key}: expected a number of '
                f'-{limit} to {limit}, got "{text}"',
            )
            for key, limit in (
                ('cpu_allocation_ratio', '1e+09'),
                ('disk_weight_multiplier', '1e+15'),
                ('max_instances_per_host', '1e+15'),
            )
            for text in ('inf', 'nan', '-1e308')
        ),
        (
            {'aggregates': [{'id': 1, 'resources': {
                'CUSTOM_A': {'total': 1}, 'VCPU': {'total': 1}}}]},
            'aggregates[0].resources.VCPU: each host offers its own',
        ),
        (
            {'instances': [{'uuid': UUID, 'host': 'a',
                            'image_meta': {'properties': [1]}}]},
            'instances[0].image_meta.properties: expected an object or null, '
            'got [1]',
        ),
        (
            {'hosts': [{'host': 'a', 'cpu_allocation_ratio': float('inf')}]},
            'hosts[0].cpu_allocation_ratio: expected a number <= '
            '1000000000.0, got inf',
        ),
        ([], 'expected an object, got []'),
        ({'hosts': {}}, 'hosts: expected a list, got {}'),
    ],
)  # fmt: skip
def test_inventory_is_refused_with_its_place_when_wrong(document, message):
    with pytest.raises(errors.InvalidInventory) as caught:
        documents.inventory(document)
    assert caught.value.args[0] == message


def test_what_is_unusual_but_right_is_accepted():
    wide = {'total': 4, 'min_unit': 2, 'max_unit': 2}
    host = {
        'host': 'a b.example.org',
        'hypervisor_hostname': 'Knoten-ä',
        'stats': {'large': 10**400, 'small': -0.0, 'text': 'nan'},
        'resources': {'CUSTOM_X': wide, 'CUSTOM_Y': {'total': 1}},
        'units': {'VCPU': {'min_unit': 5}},
    }
    rules = {'max_server_per_host': 2}
    document = {
        'hosts': [host],
        'aggregates': [
            {'id': n, 'hosts': ['a b.example.org']} for n in (1, 2)
        ],
        'server_groups': [
            {'uuid': UUID, 'policy': 'anti-affinity', 'rules': rules}
        ],
    }
    assert len(documents.inventory(document).hosts) == 1


def test_metadata_is_free_text_when_it_is_no_number():
    documents.inventory(
        {
            'aggregates': [
                {
                    'id': 1,
                    'metadata': {
                        'cpu_allocation_ratio': 'x',
                        'ram_allocation_ratio': ' 1.5 ',
                        'anything': 'inf',
                    },
                }
            ]
        }
    )


def test_nested_values_are_kept_when_they_have_more_keys():
    pool = {'count': 1, 'vendor_id': '8086', 'address': '0000:81', 'tags': {}}
    cell = {'id': 0, 'cpuset': [1], 'siblings': [[1, 2]], 'memory': 64}
    host = {'pci_device_pools': [pool], 'numa_topology': {'cells': [cell]}}
    found = documents.inventory({'hosts': [{'host': 'a', **host}]}).hosts[0]
    assert found.pci_device_pools == [pool]
    assert found.numa_topology == {'cells': [cell]}


def test_defaults_are_set_when_a_host_has_only_its_name():
    host = documents.inventory({'hosts': [{'host': 'a'}]}).hosts[0]
    assert host.hypervisor_hostname == 'a'
    assert (
        host.uuid
        == documents.inventory({'hosts': [{'host': 'a'}]}).hosts[0].uuid
    )
    assert (host.status, host.state) == ('enabled', 'up')
