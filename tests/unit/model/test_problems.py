"""All that is wrong with an inventory document, at once."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents, problems

UUID = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


def test_every_error_is_found_with_its_place():
    document = {
        'hosts': [
            {'host': 'a', 'memory_mb': 'lots', 'vcpus': -1},
            {'host': 'b', 'memory_mp': 5, 'status': 'off'},
            {'vcpus': 1, 'resources': {'CUSTOM_X': {'total': 'x'}}},
            {'host': 'a'},
        ],
        'server_groups': [{'uuid': UUID, 'policy': 'near'}, 3],
        'aggregates': [{'id': 1, 'metadata': {'key': 1}}],
        'pool': [],
    }
    assert problems.of_inventory(document) == [
        'hosts[0].memory_mb: expected an integer >= 0, got "lots"',
        'hosts[0].vcpus: expected an integer >= 0, got -1',
        'hosts[1].memory_mp: unknown key; is memory_mb meant?',
        'hosts[1].status: "off" is not one of disabled, enabled',
        'hosts[2].resources.CUSTOM_X.total: expected an integer >= 0, got "x"',
        'hosts[2].host: required, but absent',
        'server_groups[0].policy: "near" is not one of affinity, '
        'anti-affinity, soft-affinity, soft-anti-affinity',
        'server_groups[1]: expected an object, got 3',
        'aggregates[0].metadata.key: expected a string, got 1',
        'pool: unknown key; is pools meant?',
    ]


def test_entries_that_are_valid_are_compared():
    hosts = [{'host': 'a'}, {'host': 'b', 'vcpus': 'x'}, {'host': 'a'}]
    assert problems.of_inventory({'hosts': hosts}) == [
        'hosts[1].vcpus: expected an integer >= 0, got "x"',
        'hosts[2].host: a is a duplicate of hosts[0]',
    ]


@pytest.mark.parametrize(
    'document',
    [
        [],
        {'hosts': {}},
        {'hosts': [{'host': 'a\0'}]},
        {'hosts': [{'host': 'a', 'numa_topology': {'cells': 3}}]},
        {'hosts': [{'host': 'a', 'metrics': [{'name': 'l', 'value': 1e308}]}]},
        {'aggregates': [{'id': 1}, {'id': 1}]},
        {'server_groups': [{'uuid': UUID, 'rules': {'x': 1}}]},
    ],
)
def test_a_document_that_is_refused_has_a_problem(document):
    with pytest.raises(errors.InvalidInventory) as caught:
        documents.inventory(document)
    assert caught.value.args[0] in problems.of_inventory(document)


def test_a_document_that_is_accepted_has_none():
    document = {'hosts': [{'host': 'a', 'hypervisor_type': None}]}
    documents.inventory(document)
    assert problems.of_inventory(document) == []


def test_hosts_that_aggregates_name_have_to_be_somewhere():
    inventory = documents.inventory(
        {
            'hosts': [{'host': 'compute-1'}],
            'aggregates': [
                {'id': 1, 'hosts': ['compute-l', 'compute-1', 'z']}
            ],
        }
    )
    assert problems.missing_hosts(inventory) == [
        'aggregates[0].hosts[0]: there is no host compute-l; is compute-1 '
        'meant?',
        'aggregates[0].hosts[2]: there is no host z',
    ]
    assert problems.missing_hosts(inventory, ['z', 'compute-l']) == []


def test_a_duplicate_host_is_named_with_a_node_of_another_name():
    hosts = [
        {'host': 'a'},
        {'host': 'a'},
        {'host': 'b', 'hypervisor_hostname': 'n'},
    ]
    found = problems.of_inventory({'hosts': [*hosts, hosts[2]]})
    assert found == [
        'hosts[1].host: a is a duplicate of hosts[0]',
        'hosts[3].host: b (node n) is a duplicate of hosts[2]',
    ]
