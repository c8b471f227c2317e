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
        ({'hosts': [{'host': 'a', 'cpus': 1}]}, 'hosts[0].cpus: unknown key'),
        ({'hosts': [{}]}, 'hosts[0].host: required, but absent'),
        (
            {'hosts': [{'host': 'a', 'state': 'x'}]},
            'hosts[0].state: "x" is not one of down, up',
        ),
        (
            {'hosts': [{'host': 'a'}, {'host': 'a'}]},
            'hosts[1].host: a a is a duplicate of hosts[0]',
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
        ([], 'expected an object, got []'),
        ({'hosts': {}}, 'hosts: expected a list, got {}'),
    ],
)
def test_inventory_is_refused_with_its_place_when_wrong(document, message):
    with pytest.raises(errors.InvalidInventory) as caught:
        documents.inventory(document)
    assert caught.value.args[0] == message


def test_defaults_are_set_when_a_host_has_only_its_name():
    host = documents.inventory({'hosts': [{'host': 'a'}]}).hosts[0]
    assert host.hypervisor_hostname == 'a'
    assert (
        host.uuid
        == documents.inventory({'hosts': [{'host': 'a'}]}).hosts[0].uuid
    )
    assert (host.status, host.state) == ('enabled', 'up')
