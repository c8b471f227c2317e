"""A loaded table is the one that its hosts' documents make."""

import dataclasses
import random
import uuid
from typing import Any

import numpy as np
import pytest

from scheduler_service.columns import HostTable, build_table
from scheduler_service.model import documents
from scheduler_service.store import claims
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import (
    change_feed,
    loading,
    snapshot,
)
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.writing import inventory_import

TRAITS = ('HW_A', 'HW_B', 'CUSTOM_C', 'CUSTOM_D')
NAMES = ('plain', "qu'ote", 'comma,', 'h\u00f6st', 'UPPER', '\U0001f600')


def table_of_documents(store: Store) -> HostTable:
    """Return the table by way of a document for each host."""
    with store.reading() as conn:
        return build_table(
            list(loading.hosts(conn).items()),
            loading.aggregates(conn),
            change_feed.placed_instances(conn),
            loading.groups(conn).values(),
        )


def assert_equal(actual: HostTable, expected: HostTable) -> None:
    """Compare two tables, value by value and type by type."""
    assert actual.ids.dtype == expected.ids.dtype
    assert actual.ids.tolist() == expected.ids.tolist()
    assert actual.numbers.keys() == expected.numbers.keys()
    for name, column in expected.numbers.items():
        assert actual.numbers[name].dtype == column.dtype, name
        np.testing.assert_array_equal(actual.numbers[name], column, name)
    assert actual.coded.keys() == expected.coded.keys()
    for name, coded in expected.coded.items():
        mine = actual.coded[name]
        assert mine.codes.dtype == coded.codes.dtype, name
        assert mine.codes.tolist() == coded.codes.tolist(), name
        assert mine.values == coded.values, name
        assert mine.index == coded.index, name
    assert list(actual.resources) == list(expected.resources)
    for name, columns in expected.resources.items():
        for field in dataclasses.fields(columns):
            one = getattr(actual.resources[name], field.name)
            other = getattr(columns, field.name)
            assert one.dtype == other.dtype, (name, field.name)
            np.testing.assert_array_equal(one, other, f'{name} {field.name}')
    assert set(actual.instances) == set(expected.instances)
    assert len(actual.instances) == len(expected.instances)
    assert actual.groups == expected.groups
    assert actual.topology.aggregates == expected.topology.aggregates


def a_host(dice: random.Random, name: str) -> dict[str, Any]:
    """Return a host of which any field may be absent."""
    fields: dict[str, Any] = {
        'uuid': str(uuid.UUID(int=dice.getrandbits(128))),
        'hypervisor_hostname': f'{name}-{dice.randrange(2)}',
        'status': dice.choice(('enabled', 'disabled')),
        'state': dice.choice(('up', 'down')),
        'disabled_reason': dice.choice((None, '', 'broken \u00e4')),
        'vcpus': dice.randrange(100),
        'vcpus_used': dice.randrange(200),
        'memory_mb': dice.choice((0, 2**53)),
        'memory_mb_used': dice.randrange(2**40),
        'local_gb': dice.randrange(1000),
        'disk_available_least': dice.choice((None, -5, 0, 77)),
        'cpu_allocation_ratio': dice.choice((None, 0.0, 1.5, 16.0)),
        'disk_allocation_ratio': dice.choice((None, 0.1)),
        'hypervisor_type': dice.choice((None, 'QEMU', '')),
        'hypervisor_version': dice.choice((None, 0, 8002000)),
        'host_ip': dice.choice((None, '10.0.0.1', '::1')),
        'cell_uuid': dice.choice((None, 'cell-1')),
        'num_io_ops': dice.randrange(9),
        'failed_builds': dice.randrange(3),
        'num_instances': dice.choice((None, 3)),
        'traits': dice.sample(TRAITS, dice.randrange(4)),
        'supported_instances': dice.choice(
            (None, [], [['x86_64', 'kvm', None]])
        ),
        'cpu_info': dice.choice(
            (None, '', '{"vendor": "x"}', {'b': 1, 'a': {'c': [1.5, None]}})
        ),
        'stats': dice.choice((None, {}, {'z': 1, 'a': 'h\u00f6', 'f': 0.1})),
        'metrics': dice.choice(
            (
                None,
                [],
                [{'name': 'm', 'value': 0.5}],
                [{'name': 'n', 'source': 's', 'timestamp': 't', 'value': 7}],
            )
        ),
        'pci_device_pools': dice.choice((None, [{'count': 2, 'tag': 'a'}])),
        'numa_topology': dice.choice((None, {'cells': [{'id': 0}]})),
        'resources': {
            kind: {
                'total': dice.randrange(10),
                'used': dice.randrange(4),
                'reserved': dice.randrange(3),
                'max_unit': dice.choice((None, 4)),
                'min_unit': dice.choice((1, 2)),
                'step_size': dice.choice((1, 3)),
                'allocation_ratio': dice.choice((1.0, 2.5)),
            }
            for kind in ('CUSTOM_B', 'CUSTOM_A', 'PGPU')
            if dice.random() < 0.3
        },
        'units': {
            kind: {
                'max_unit': dice.choice((None, 4)),
                'min_unit': dice.choice((1, 2)),
                'step_size': dice.choice((1, 3)),
            }
            for kind in ('VCPU', 'DISK_GB')
            if dice.random() < 0.3
        },
    }
    kept = {key: v for key, v in fields.items() if dice.random() < 0.7}
    return {'host': name, **kept}


def an_inventory(seed: int) -> Any:
    """Return a random inventory document."""
    dice = random.Random(seed)
    hosts = [f'{dice.choice(NAMES)}-{n}' for n in range(dice.randrange(1, 20))]
    instances = [
        {
            'uuid': str(uuid.UUID(int=dice.getrandbits(128), version=4)),
            'host': dice.choice([*hosts, 'unknown']),
            'project_id': dice.choice((None, 'p', 'q')),
            'task_state': dice.choice((None, 'resizing')),
            'flavor': dice.choice(({}, {'flavorid': 7}, {'flavorid': 'x'})),
            'image_meta': dice.choice(
                ({}, {'properties': {'os': 'l', 'n': 1}}, {'properties': {}})
            ),
        }
        for _ in range(dice.randrange(12))
    ]
    return documents.inventory(
        {
            'hosts': [a_host(dice, name) for name in hosts],
            'aggregates': [
                {
                    'id': dice.randrange(1000) * 10 + number,
                    'hosts': dice.sample(hosts, dice.randrange(len(hosts))),
                    'metadata': {'availability_zone': f'z{number}'},
                }
                for number in range(dice.randrange(6))
            ],
            'instances': instances,
            'server_groups': [
                {
                    'uuid': str(uuid.UUID(int=seed, version=4)),
                    'members': [
                        instance['uuid'] for instance in instances[:3]
                    ],
                }
            ],
        }
    )


def claim_and_move(store: Store) -> None:
    """Claim an instance on the first host, and its move to the last."""
    with store.reading() as conn:
        hosts = list(loading.hosts(conn).items())
    consumer = str(uuid.uuid4())
    for (host_id, host), move in ((hosts[0], False), (hosts[-1], True)):
        claim = claims.Claim(
            consumer=consumer,
            host_id=host_id,
            host=host.host,
            node=host.hypervisor_hostname,
            amounts={},
            ratios={},
            project_id='p',
            request_id=None,
            document='{"flavor":{"flavorid":"7"}}',
            placement='{}',
            is_present=move,
            move=move,
        )
        store.write(claims.ClaimBatch(store, [claim], {}).make)


@pytest.mark.parametrize('seed', range(4))
def test_a_loaded_table_is_the_one_of_the_documents(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also where hosts and instances are read in several parts."""
    inventory = an_inventory(seed)
    store.write(
        lambda writer: inventory_import.Importer(writer).run(inventory)
    )
    if len({host.host for host in inventory.hosts}) > 1:
        claim_and_move(store)
    expected = table_of_documents(store)
    for part in (1, 3, len(inventory.hosts), 25_000):
        monkeypatch.setattr(snapshot, '_PART', part)
        with store.reading() as conn:
            assert_equal(load_snapshot(conn).hosts, expected)


def test_an_empty_store_is_loaded_as_an_empty_table(store: Store) -> None:
    with store.reading() as conn:
        snapshot = load_snapshot(conn)
    assert_equal(snapshot.hosts, build_table([]))
    assert snapshot.revision == 0
