"""Rows of the compute service become our documents."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.compute.follower import cells
from scheduler_service.compute.follower.databases import ServiceState
from tests.support import nova_wire

UP = ServiceState()
CELL = 'cccccccc-0000-4000-8000-000000000001'


def node(**values: Any) -> Any:
    """Return a row of compute_nodes."""
    row = {
        'host': 'c1',
        'hypervisor_hostname': 'n1',
        'uuid': 'aaaaaaaa-0000-4000-8000-000000000001',
        'vcpus': 8,
        'memory_mb': 1024,
        'local_gb': 10,
        'vcpus_used': 1,
        'memory_mb_used': 512,
        'local_gb_used': 0,
        'free_disk_gb': 10,
        'disk_available_least': -3,
        'hypervisor_type': 'QEMU',
        'hypervisor_version': 8002000,
        'host_ip': '192.0.2.1',
        'cpu_info': '{"features": ["aes"]}',
        'supported_instances': '[["x86_64", "kvm", "hvm"]]',
        'stats': None,
        'metrics': None,
        'pci_stats': None,
        'numa_topology': None,
        'cpu_allocation_ratio': 0.0,
        'ram_allocation_ratio': None,
        'disk_allocation_ratio': 1.5,
    }
    return SimpleNamespace(**{**row, **values})


def changes(**values: Any) -> dict[str, Any]:
    """Return what is reported of a host."""
    return cells.host_report(node(**values), UP, CELL).changes


def test_capacity_and_ratios():
    found = changes()
    assert (found['vcpus'], found['vcpus_used']) == (8, 1)
    assert found['disk_available_least'] == -3
    assert found['cpu_allocation_ratio'] is None
    assert found['ram_allocation_ratio'] is None
    assert found['disk_allocation_ratio'] == 1.5


def test_placement_knows_capacity_better():
    report = cells.host_report(node(), UP, CELL, with_capacity=False)
    assert not report.changes.keys() & {*cells.CAPACITY_FIELDS}
    # An earlier value is removed: it would limit what placement has.
    assert report.changes['disk_available_least'] is None
    assert report.changes['cell_uuid'] == CELL


def test_counts_are_text_in_stats():
    found = changes(stats='{"io_workload": "3", "failed_builds": "x"}')
    assert (found['num_io_ops'], found['failed_builds']) == (3, 0)
    assert found['stats'] == {'io_workload': '3', 'failed_builds': 'x'}


@pytest.mark.parametrize('text', [None, '', 'x', '[', '3', '{"a": 1}', '[1]'])
def test_texts_that_cannot_be_read_count_as_empty(text):
    found = changes(
        metrics=text, pci_stats=text, numa_topology=text, stats=text
    )
    assert found['metrics'] == []
    assert found['numa_topology'] is None
    assert found['pci_device_pools'] == []


def test_versioned_objects_become_plain():
    def wrapped(name: str, **data: Any) -> Any:
        return {
            'nova_object.name': name,
            'nova_object.namespace': 'nova',
            'nova_object.version': '1.0',
            'nova_object.data': data,
        }

    pool = wrapped(
        'PciDevicePool',
        count=2,
        vendor_id='8086',
        product_id='10fb',
        numa_node=0,
        tags={'dev_type': 'type-VF'},
    )
    pages = wrapped('NUMAPagesTopology', size_kb=4, total=100, used=1)
    cell = wrapped(
        'NUMACell',
        id=0,
        cpuset=[0, 1],
        pcpuset=[],
        memory=512,
        cpu_usage=0,
        memory_usage=0,
        mempages=[pages],
        siblings=[],
        pinned_cpus=[],
        network_metadata=None,
    )
    found = changes(
        pci_stats=json.dumps(wrapped('PciDevicePoolList', objects=[pool])),
        numa_topology=json.dumps(wrapped('NUMATopology', cells=[cell])),
    )
    assert found['pci_device_pools'][0]['tags'] == {'dev_type': 'type-VF'}
    assert found['pci_device_pools'][0]['count'] == 2
    read = found['numa_topology']['cells'][0]
    assert read['mempages'] == [{'size_kb': 4, 'total': 100, 'used': 1}]
    assert 'network_metadata' not in read


def test_numa_cells_have_their_ratios_where_placement_has_the_capacity():
    row = node(
        numa_topology=json.dumps(nova_wire.thing('NUMATopology', cells=[])),
        cpu_allocation_ratio=4.0,
        ram_allocation_ratio=None,
    )
    own = cells.host_report(row, UP, CELL)
    assert own.changes['numa_topology'] == {'cells': []}
    without = cells.host_report(row, UP, CELL, with_capacity=False)
    assert without.changes['numa_topology'] == {
        'cells': [], 'cpu_allocation_ratio': 4.0,
    }  # fmt: skip


def test_a_host_that_no_document_can_be_made_of_is_an_error():
    with pytest.raises(errors.InvalidRequest):
        changes(host='x' * 300)


def test_a_disabled_service_says_why():
    state = ServiceState(True, 'broken fan', True)
    found = cells.host_report(node(), state, CELL).changes
    assert (found['status'], found['disabled_reason']) == (
        'disabled',
        'broken fan',
    )


def test_an_aggregate_that_cannot_be_is_left_out():
    heads = [
        SimpleNamespace(id=number, uuid=None, name=f'a{number}')
        for number in (1, 2)
    ]
    pairs = [
        SimpleNamespace(
            aggregate_id=2, key='cpu_allocation_ratio', value='1e300'
        )
    ]
    made, left_out = cells.translated_aggregates(heads, [], pairs)
    assert [one.id for one in made] == [1]
    assert len(left_out) == 1
    assert left_out[0].startswith('aggregate 2: ')
