"""The smallest changes of a request with which hosts pass."""

import uuid

import pytest

from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import comparison
from scheduler_service.settings import Settings
from scheduler_service.testing import table

NAMES = (
    'ComputeFilter', 'RamFilter', 'CoreFilter', 'DiskFilter',
    'AvailabilityZoneFilter', 'ImagePropertiesFilter', 'SameHostFilter',
    'ServerGroupAntiAffinityFilter', 'ComputeCapabilitiesFilter',
)  # fmt: skip
PIPELINE = HostPipeline(
    [kind() for kind in all_filters() if kind.name in NAMES],
    [],
    Settings(cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0),
)
GROUP, MEMBER, OTHER = (str(uuid.UUID(int=n + 1)) for n in range(3))
CLOUD = {
    'hosts': [
        {'host': 'a', 'vcpus': 8, 'memory_mb': 8000, 'local_gb': 100},
        {
            'host': 'b', 'vcpus': 4, 'memory_mb': 6000, 'local_gb': 100,
            'traits': ['CUSTOM_SSD'], 'hypervisor_type': 'QEMU',
            'resources': {'CUSTOM_FPGA': {'total': 3}},
            'supported_instances': [['x86_64', 'kvm', 'hvm']],
        },
    ],
    'aggregates': [
        {'id': 1, 'hosts': ['a'], 'metadata': {'availability_zone': 'north'}}
    ],
    'instances': [
        {'uuid': MEMBER, 'host': host} for host in ('a',)
    ] + [{'uuid': OTHER, 'host': 'b'}],
    'server_groups': [
        {'uuid': GROUP, 'policy': 'anti-affinity', 'members': [MEMBER, OTHER]}
    ],
}  # fmt: skip
SMALL = {'vcpus': 1, 'memory_mb': 1000, 'root_gb': 1}


def smallest(flavor=SMALL, specs=None, **more):
    request = documents.request(
        {'flavor': {**flavor, 'extra_specs': specs or {}}, **more}
    ).with_ids()
    hosts = table(CLOUD)
    assert comparison.passing(PIPELINE, hosts, request) == 0
    return [tuple(e) for e in comparison.smallest(PIPELINE, hosts, request)]


@pytest.mark.parametrize(
    ('flavor', 'change', 'hosts'),
    [
        ({'vcpus': 10}, 'vcpus 8 in place of 10', 1),
        ({'memory_mb': 8001}, 'memory_mb 8,000 in place of 8,001', 1),
        ({'root_gb': 300}, 'root_gb 100 in place of 300', 2),
        ({'ephemeral_gb': 120}, 'ephemeral_gb 99 in place of 120', 2),
    ],
)
def test_the_largest_amount_that_is_smaller(flavor, change, hosts):
    assert smallest({**SMALL, **flavor}) == [(change, hosts)]


@pytest.mark.parametrize(
    ('more', 'change', 'hosts'),
    [
        ({'availability_zone': 'south'}, 'without the zone south', 2),
        (
            {'specs': {'trait:CUSTOM_GPU': 'required'}},
            'without the extra spec trait:CUSTOM_GPU=required', 2,
        ),
        (
            {'specs': {'capabilities:hypervisor_type': 's== Xen'}},
            'without the extra spec capabilities:hypervisor_type=s== Xen', 2,
        ),
        (
            {'traits': {'CUSTOM_GPU': 'required'}},
            'without the trait CUSTOM_GPU', 2,
        ),
        (
            {'root_traits': {'CUSTOM_GPU': 'required'}},
            'without the trait CUSTOM_GPU', 2,
        ),
        (
            {'scheduler_hints': {'same_host': [GROUP]}},
            'without the hint same_host', 2,
        ),
        (
            {'image': {'properties': {'hw_architecture': 'aarch64'}}},
            'without the image property hw_architecture=aarch64', 2,
        ),
        (
            {'instance_group': GROUP},
            'without the policy of its server group', 2,
        ),
    ],
)  # fmt: skip
def test_a_condition_is_left_out(more, change, hosts):
    assert smallest(**more) == [(change, hosts)]


def test_the_policy_of_a_group_that_is_stored_is_left_out():
    request = documents.request({'flavor': SMALL}).with_ids()
    request.stored_groups = {request.instance_uuids[0]: [GROUP]}
    assert comparison.smallest(PIPELINE, table(CLOUD), request) == [
        ('without the policy of its server group', 2)
    ]


def test_an_amount_of_any_class_may_be_smaller_or_left_out():
    assert smallest(specs={'resources:CUSTOM_FPGA': '4'}) == [
        ('resources:CUSTOM_FPGA 3 in place of 4', 1),
        ('without the extra spec resources:CUSTOM_FPGA=4', 2),
    ]
    stated = {'VCPU': 1, 'CUSTOM_FPGA': 4}
    assert smallest(amounts=stated) == [('CUSTOM_FPGA 3 in place of 4', 1)]


def test_no_single_change_is_enough_where_two_are_needed():
    assert smallest({**SMALL, 'vcpus': 99, 'memory_mb': 99_999}) == []


def test_the_smallest_come_first_and_there_are_five_at_most():
    """Leaving out counts as half of an amount."""
    found = smallest(
        {'vcpus': 8, 'memory_mb': 6500, 'root_gb': 1},
        specs={'trait:CUSTOM_SSD': 'required'},
    )
    assert found == [('without the extra spec trait:CUSTOM_SSD=required', 1)]
    found = smallest(
        {'vcpus': 4, 'memory_mb': 7000, 'root_gb': 1},
        specs={'trait:CUSTOM_SSD': 'required'},
    )
    assert found == [
        ('memory_mb 6,000 in place of 7,000', 1),
        ('without the extra spec trait:CUSTOM_SSD=required', 1),
    ]
    many = {f'hint_{n}': 'x' for n in range(9)}
    assert len(smallest(availability_zone='x', scheduler_hints=many)) == 1
