"""How full zones are; what fits where is what the pipeline can place."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import headroom
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.load_weigher import RAMWeigher

SETTINGS = Settings(cpu_allocation_ratio=2.0)


def host(name, vcpus, **more):
    return {'host': name, 'vcpus': vcpus, 'memory_mb': 1024, **more}


def told(inventory, **how):
    return {
        (one.zone, one.resource_class): one
        for one in headroom.by_zone(table(inventory), SETTINGS, **how)
    }


def in_zone(number, zone, *hosts):
    return {
        'id': number,
        'name': f'of-{zone}',
        'hosts': list(hosts),
        'metadata': {'availability_zone': zone},
    }


def test_zones_are_summed_up():
    found = told(
        {
            'hosts': [
                host('a', 10),
                host('b', 4, vcpus_used=3),
                host('c', 6, status='disabled'),
                host('d', 8),
            ],
            'aggregates': [in_zone(1, 'north', 'a', 'b', 'c')],
        }
    )
    assert found['north', 'VCPU'] == ('north', 'VCPU', 40, 3, 25, 12, 0)
    assert found['nova', 'VCPU'] == ('nova', 'VCPU', 16, 0, 16, 0, 0)


def test_reserved_and_own_ratios_count():
    resource = {'total': 8, 'reserved': 2, 'allocation_ratio': 1.5}
    found = told({'hosts': [host('a', 1, resources={'CUSTOM_X': resource})]})
    assert found['nova', 'CUSTOM_X'].capacity == 9.0


def test_what_an_aggregate_offers_is_told_once():
    offered = {'CUSTOM_X': {'total': 5, 'used': 1}}
    cloud = {
        'hosts': [
            host('a', 1),
            host('b', 1, status='disabled'),
            host('c', 1, resources={'CUSTOM_X': {'total': 2}}),
        ],
        'aggregates': [
            {'id': 1, 'name': 'x', 'hosts': ['a', 'b', 'c'],
             'resources': offered},
            {'id': 2, 'name': 'y', 'hosts': ['a'], 'resources': offered},
            {'id': 3, 'name': 'z', 'hosts': ['b'],
             'resources': {'CUSTOM_Z': {'total': 3}}},
        ],
    }  # fmt: skip
    for whole, place in ((True, 'aggregate x'), (False, 'aggregates')):
        found = told(cloud, whole=whole)
        assert found['nova', 'CUSTOM_X'].capacity == 2.0
        assert found[place, 'CUSTOM_X'][2:] == (5, 1, 4, 0, 0)
    # Also where none of its hosts is up.
    assert found['aggregates', 'CUSTOM_Z'][2:] == (3, 0, 3, 0, 0)


def test_use_beyond_the_capacity_leaves_nothing_free_elsewhere():
    found = told({'hosts': [host('a', 2, vcpus_used=9), host('b', 2)]})
    assert found['nova', 'VCPU'][2:] == (8, 9, 4, 0, 5)


ZONES = [f'z{n:03}' for n in range(headroom.MOST_ZONES + 7)]
CLASSES = {f'CUSTOM_{n}': {'total': 1} for n in range(60)}
MANY = {
    'hosts': [host(f'h-{zone}', 1, resources=CLASSES) for zone in ZONES],
    'aggregates': [
        in_zone(number, zone, f'h-{zone}')
        for number, zone in enumerate(ZONES, 1)
    ],
}


def test_hosts_that_are_out_run_out_first_of_what_is_used_most():
    out = host('a', 8, status='disabled', memory_mb_used=512)
    rows = headroom.zone_rows(table({'hosts': [out]}), SETTINGS, None)
    assert [row['resource'] for row in rows if row['ends_first']] == [
        'MEMORY_MB'
    ]


def test_many_zones_and_classes_are_told_in_sum():
    found = told(MANY)
    assert len({zone for zone, _ in found}) == headroom.MOST_ZONES + 1
    assert len({name for _, name in found}) == headroom.MOST_CLASSES + 1
    of_all = sum(
        one.capacity
        for (_, name), one in found.items()
        if name.startswith('CUSTOM_') or name == headroom.OTHERS
    )
    # With memory and disk among them, whichever they are with.
    assert of_all >= 60 * len(ZONES) - 2 * len(ZONES)


def test_many_zones_and_classes_are_told_apart_where_all_are_wanted():
    found = told(MANY, whole=True)
    assert {zone for zone, _ in found} == {*ZONES}
    assert {name for _, name in found} == {*CLASSES, 'VCPU', 'MEMORY_MB'}
    for zone in ZONES:
        assert found[zone, 'VCPU'] == (zone, 'VCPU', 2, 0, 2, 0, 0)


def test_nothing_is_told_before_the_hosts_are_loaded():
    assert headroom.by_zone(None, SETTINGS) == []


FEW = ('ComputeFilter', 'RamFilter', 'CoreFilter', 'DiskFilter')


def pipeline(*names, **settings):
    chain = [kind() for kind in all_filters() if kind.name in names]
    return HostPipeline(chain, [RAMWeigher()], Settings(**settings))


PIPELINE = pipeline(*FEW)
HOST = st.fixed_dictionaries(
    {
        'vcpus': st.integers(1, 4),
        'memory_mb': st.integers(0, 4000),
        'memory_mb_used': st.integers(0, 1000),
        'local_gb': st.integers(0, 20),
        'ram_allocation_ratio': st.sampled_from([1.0, 1.5]),
        'status': st.sampled_from(['enabled', 'disabled']),
        'resources': st.sampled_from(
            [
                {},
                {'PCPU': {'total': 1}},
                {'PCPU': {'total': 3}},
                {'CUSTOM_A': {'total': 3, 'reserved': 1}},
            ]
        ),
    }
)
FLAVOR = st.fixed_dictionaries(
    {
        'vcpus': st.integers(0, 3),
        'memory_mb': st.integers(300, 1500),
        'root_gb': st.integers(0, 5),
        'extra_specs': st.fixed_dictionaries(
            {},
            optional={
                'hw:cpu_policy': st.just('dedicated'),
                'resources:CUSTOM_A': st.sampled_from(['1', '2']),
            },
        ),
    }
)
AGGREGATE = st.fixed_dictionaries(
    {
        'hosts': st.lists(st.sampled_from(['h0', 'h1', 'h2']), unique=True),
        'resources': st.fixed_dictionaries(
            {'CUSTOM_A': st.fixed_dictionaries({'total': st.integers(0, 5)})}
        ),
    }
)


@given(hosts=st.lists(HOST, min_size=1, max_size=5))
@settings(deadline=None, max_examples=50)
def test_what_is_free_out_and_over_is_counted_host_by_host(hosts):
    names = [f'h{number}' for number in range(len(hosts))]
    found = told(
        {
            'hosts': [
                {'host': name, **host}
                for name, host in zip(names, hosts, strict=True)
            ]
        }
    )
    capacity = [h['memory_mb'] * h['ram_allocation_ratio'] for h in hosts]
    left = [
        most - host['memory_mb_used']
        for most, host in zip(capacity, hosts, strict=True)
    ]
    up = [host['status'] == 'enabled' for host in hosts]
    if not sum(capacity) + sum(h['memory_mb_used'] for h in hosts):
        assert ('nova', 'MEMORY_MB') not in found
        return
    assert found['nova', 'MEMORY_MB'][2:] == (
        sum(capacity),
        sum(host['memory_mb_used'] for host in hosts),
        sum(max(left[n], 0) for n in range(len(hosts)) if up[n]),
        sum(max(left[n], 0) for n in range(len(hosts)) if not up[n]),
        sum(max(-more, 0) for more in left),
    )


def request(flavor, **more):
    return documents.request({'flavor': flavor, **more}).with_ids()


@given(
    hosts=st.lists(HOST, max_size=5),
    flavor=FLAVOR,
    aggregates=st.lists(AGGREGATE, max_size=2),
)
@settings(deadline=None, max_examples=30)
def test_as_many_fit_as_can_be_placed(hosts, flavor, aggregates):
    inventory = {
        'hosts': [
            {'host': f'h{number}', **host} for number, host in enumerate(hosts)
        ],
        'aggregates': [
            {'id': number, **aggregate}
            for number, aggregate in enumerate(aggregates)
        ],
    }
    found = headroom.fits(PIPELINE, table(inventory), request(flavor))
    hosts, placed = table(inventory), 0
    overlay, rng = Overlay(hosts), random.Random(1)
    for form in request(flavor).forms(hosts.resources):
        with contextlib.suppress(errors.NoValidHost):
            while True:
                PIPELINE.select(overlay, form, rng)
                placed += 1
    assert sum(one.instances for one in found) == placed
    if placed:
        assert found[0].ends in (
            'VCPU',
            'PCPU',
            'MEMORY_MB',
            'DISK_GB',
            'CUSTOM_A',
        )


CELL = st.fixed_dictionaries(
    {
        'cpuset': st.sets(st.integers(0, 5), max_size=4).map(sorted),
        'cpu_usage': st.integers(0, 2),
        'memory': st.integers(0, 3000),
        'memory_usage': st.integers(0, 500),
        'siblings': st.sampled_from([[], [[0, 1], [2, 3], [4, 5]]]),
    }
)
POOL = st.fixed_dictionaries(
    {
        'vendor_id': st.sampled_from(['8086', '10de']),
        'numa_node': st.sampled_from([0, 1, None]),
        'count': st.integers(0, 4),
    }
)
REPORTING_HOST = st.fixed_dictionaries(
    {
        'vcpus': st.integers(1, 8),
        'memory_mb': st.integers(0, 8000),
        'num_instances': st.integers(0, 4),
        'numa_topology': st.fixed_dictionaries(
            {'cells': st.lists(CELL, max_size=2)}
        ),
        'pci_device_pools': st.lists(POOL, max_size=3),
        'resources': st.sampled_from(
            [{}, {'CUSTOM_X': {'total': 8, 'reserved': 2}}]
        ),
    }
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        'hw:numa_nodes': st.sampled_from(['1', '2']),
        'hw:cpu_policy': st.sampled_from(['dedicated', 'shared']),
        'pci_passthrough:alias': st.sampled_from(['nic:1', 'nic:2']),
        'resources:CUSTOM_X': st.just('1'),
    },
)


def most_placed(chain, hosts, flavor):
    """Return how many instances of one request find their hosts."""
    placed = 0
    while True:
        wanted = request(flavor, num_instances=placed + 1)
        (form,) = wanted.forms(hosts.resources)
        overlay = Overlay(hosts)
        try:
            chain.select(overlay, form, random.Random(1))
        except errors.NoValidHost:
            return placed
        overlay.forget()
        placed += 1


@given(
    hosts=st.lists(REPORTING_HOST, min_size=1, max_size=3),
    vcpus=st.sampled_from([2, 4]),
    specs=SPECS,
    by_aggregate=st.sampled_from([None, '3']),
)
@settings(deadline=None, max_examples=60)
def test_cells_devices_and_numbers_of_instances_count(
    hosts, vcpus, specs, by_aggregate
):
    """Hosts report what instances took of them; until then it is known."""
    chain = pipeline(
        *FEW, 'NUMATopologyFilter', 'PciPassthroughFilter',
        'AggregateNumInstancesFilter',
        cpu_allocation_ratio=2.0, max_instances_per_host=6,
        pci_aliases=('{"name": "nic", "vendor_id": "8086"}',),
    )  # fmt: skip
    inventory = {
        'hosts': [
            {'host': f'h{number}', **host} for number, host in enumerate(hosts)
        ]
    }
    if by_aggregate:
        metadata = {'max_instances_per_host': by_aggregate}
        inventory['aggregates'] = [
            {'id': 1, 'hosts': ['h0'], 'metadata': metadata}
        ]
    flavor = {'vcpus': vcpus, 'memory_mb': 300, 'extra_specs': specs}
    own = table(inventory)
    found = headroom.fits(chain, own, request(flavor))
    placed = most_placed(chain, own, flavor)
    assert sum(one.instances for one in found) == placed


@pytest.mark.parametrize(
    ('specs', 'host', 'ends'),
    [
        ({}, {}, 'MEMORY_MB'),
        ({}, {'num_instances': 5}, 'NumInstancesFilter'),
        (
            {'pci_passthrough:alias': 'nic:1'},
            {'pci_device_pools': [{'vendor_id': '8086', 'count': 1}]},
            'PciPassthroughFilter',
        ),
        (
            {'hw:cpu_policy': 'dedicated'},
            {
                'numa_topology': {
                    'cells': [{'cpuset': [0, 1, 2], 'memory': 9000}]
                }
            },
            'NUMATopologyFilter',
        ),
    ],
)
def test_what_ends_first_may_be_what_a_filter_checks(specs, host, ends):
    chain = pipeline(
        *FEW, 'NUMATopologyFilter', 'PciPassthroughFilter',
        'NumInstancesFilter', max_instances_per_host=6,
        ram_allocation_ratio=1.0,
        pci_aliases=('{"name": "nic", "vendor_id": "8086"}',),
    )  # fmt: skip
    hosts = [{'host': 'a', 'vcpus': 8, 'memory_mb': 3000, **host}]
    flavor = {'vcpus': 2, 'memory_mb': 1000, 'extra_specs': specs}
    (found,) = headroom.fits(chain, table({'hosts': hosts}), request(flavor))
    assert found.ends == ends
    assert found.instances == (3 if ends == 'MEMORY_MB' else 1)


def fits_by(by, flavor, **more):
    hosts = [
        host('full', 1, vcpus_used=16),
        host('down', 8, state='down'),
        host('free', 8, resources={'CUSTOM_X': {'total': 1, 'used': 1}}),
        host('alone', 8),
    ]
    aggregates = [
        in_zone(1, 'north', 'full'),
        in_zone(2, 'south', 'down'),
        {'id': 3, 'name': 'of-both', 'hosts': ['full', 'free']},
        {'id': 4, 'name': 'of-north', 'hosts': ['down']},
    ]
    own = table({'hosts': hosts, 'aggregates': aggregates})
    return [
        tuple(one)
        for one in headroom.fits(PIPELINE, own, request(flavor, **more), by)
    ]


def test_a_zone_where_nothing_fits_is_told_with_what_ends():
    flavor = {'vcpus': 1, 'memory_mb': 512}
    assert fits_by('zone', flavor) == [
        ('north', 0, 0, 'VCPU'),
        ('nova', 2, 6, 'MEMORY_MB'),
        ('south', 0, 0, 'ComputeFilter'),
    ]
    assert fits_by('zone', flavor, availability_zone='north') == [
        ('north', 0, 0, 'VCPU')
    ]
    specs = {'resources:CUSTOM_X': '1'}
    assert fits_by('zone', {**flavor, 'extra_specs': specs})[1] == (
        'nova', 0, 0, 'CUSTOM_X',
    )  # fmt: skip
    specs = {'resources:CUSTOM_ABSENT': '1'}
    assert fits_by('zone', {**flavor, 'extra_specs': specs})[1] == (
        'nova', 0, 0, 'CUSTOM_ABSENT',
    )  # fmt: skip


def test_a_host_counts_in_each_of_its_aggregates():
    assert fits_by('aggregate', {'vcpus': 1, 'memory_mb': 512}) == [
        ('of-north', 0, 0, 'VCPU'),
        ('of-south', 0, 0, 'ComputeFilter'),
        ('of-both', 1, 3, 'MEMORY_MB'),
        # Names need not differ.
        ('of-north', 0, 0, 'ComputeFilter'),
        ('', 1, 3, 'MEMORY_MB'),
    ]


def test_dedicated_cpus_are_told_in_both_forms():
    """Hosts that offer PCPU are filled first, then the others."""
    hosts = [
        {'host': name, 'vcpus': 4, 'memory_mb': 4000, 'resources': offered,
         'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0}
        for name, offered in (
            ('both', {'PCPU': {'total': 4}}), ('shared', {}),
        )
    ]  # fmt: skip
    flavor = {
        'vcpus': 2,
        'memory_mb': 1250,
        'extra_specs': {'hw:cpu_policy': 'dedicated'},
    }
    own = table({'hosts': hosts})
    before = {name: one.used.tolist() for name, one in own.resources.items()}
    found = headroom.fits(PIPELINE, own, request(flavor), 'host')
    assert [(one.place, one.instances) for one in found] == [
        ('both', 3), ('shared', 2),
    ]  # fmt: skip
    assert before == {
        name: one.used.tolist() for name, one in own.resources.items()
    }
    requests = [request(flavor) for _ in range(6)]
    moves = headroom.drain(PIPELINE, own, requests)
    assert sum(move.host is not None for move in moves) == 5


def test_the_largest_instance_goes_first_and_the_plan_counts_it():
    hosts = [
        {'host': name, 'vcpus': 8, 'memory_mb': memory, 'local_gb': 10,
         'ram_allocation_ratio': 1.0}
        for name, memory in (('a', 1000), ('b', 3000), ('c', 9000))
    ]  # fmt: skip
    requests = [
        request({'memory_mb': memory}, ignore_hosts=['c'])
        for memory in (900, 2500, 600)
    ]
    moves = list(headroom.drain(PIPELINE, table({'hosts': hosts}), requests))
    told = [(move.request.flavor.memory_mb, move.host) for move in moves]
    assert told == [(2500, 'b'), (900, 'a'), (600, None)]
    assert 'RamFilter' in moves[2].reason
    assert moves[0].zone == 'nova'


def test_number_is_not_told_when_a_flavor_asks_for_no_resource():
    inventory = {'hosts': [{'host': 'a', 'vcpus': 4, 'memory_mb': 4000}]}
    nothing = {'vcpus': 0, 'memory_mb': 0, 'root_gb': 0}
    found = headroom.fits(PIPELINE, table(inventory), request(nothing))
    assert found == [('nova', 1, None, '')]
