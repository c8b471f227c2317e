"""How full zones are; what fits where is what the pipeline can place."""

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine import headroom
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.load_weigher import RAMWeigher

SETTINGS = Settings(cpu_allocation_ratio=2.0)


def host(name, vcpus, **more):
    return {'host': name, 'vcpus': vcpus, 'memory_mb': 1024, **more}


def told(inventory, **how):
    snapshot = Snapshot(table(inventory), {}, 1)
    return {
        (one.zone, one.resource_class): one
        for one in headroom.by_zone(snapshot, SETTINGS, **how)
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
    assert found['north', 'VCPU'] == ('north', 'VCPU', 40.0, 3.0, 25.0)
    assert found['nova', 'VCPU'] == ('nova', 'VCPU', 16.0, 0.0, 16.0)


def test_reserved_and_own_ratios_count():
    resource = {'total': 8, 'reserved': 2, 'allocation_ratio': 1.5}
    found = told({'hosts': [host('a', 1, resources={'CUSTOM_X': resource})]})
    assert found['nova', 'CUSTOM_X'].capacity == 9.0


def test_use_beyond_the_capacity_leaves_nothing_free_elsewhere():
    found = told({'hosts': [host('a', 2, vcpus_used=9), host('b', 2)]})
    assert found['nova', 'VCPU'][2:] == (8.0, 9.0, 4.0)


ZONES = [f'z{n:03}' for n in range(headroom.MOST_ZONES + 7)]
CLASSES = {f'CUSTOM_{n}': {'total': 1} for n in range(60)}
MANY = {
    'hosts': [host(f'h-{zone}', 1, resources=CLASSES) for zone in ZONES],
    'aggregates': [
        in_zone(number, zone, f'h-{zone}')
        for number, zone in enumerate(ZONES, 1)
    ],
}


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
        assert found[zone, 'VCPU'] == (zone, 'VCPU', 2.0, 0.0, 2.0)


def test_nothing_is_told_before_the_hosts_are_loaded():
    assert headroom.by_zone(None, SETTINGS) == []


FEW = ('ComputeFilter', 'RamFilter', 'CoreFilter', 'DiskFilter')
PIPELINE = HostPipeline(
    [kind() for kind in all_filters() if kind.name in FEW],
    [RAMWeigher()],
    Settings(),
)
HOST = st.fixed_dictionaries(
    {
        'vcpus': st.integers(1, 4),
        'memory_mb': st.integers(0, 4000),
        'memory_mb_used': st.integers(0, 1000),
        'local_gb': st.integers(0, 20),
        'ram_allocation_ratio': st.sampled_from([1.0, 1.5]),
        'status': st.sampled_from(['enabled', 'disabled']),
        'resources': st.sampled_from(
            [{}, {'PCPU': {'total': 1}}, {'PCPU': {'total': 3}}]
        ),
    }
)
FLAVOR = st.fixed_dictionaries(
    {
        'vcpus': st.integers(0, 3),
        'memory_mb': st.integers(300, 1500),
        'root_gb': st.integers(0, 5),
        'extra_specs': st.sampled_from([{}, {'hw:cpu_policy': 'dedicated'}]),
    }
)


def request(flavor, **more):
    return documents.request({'flavor': flavor, **more}).with_ids()


@given(hosts=st.lists(HOST, max_size=5), flavor=FLAVOR)
@settings(deadline=None, max_examples=30)
def test_as_many_fit_as_can_be_placed(hosts, flavor):
    inventory = {
        'hosts': [
            {'host': f'h{number}', **host} for number, host in enumerate(hosts)
        ]
    }
    found = headroom.fits(PIPELINE, table(inventory), request(flavor), 'nova')
    hosts, placed = table(inventory), 0
    overlay, rng = Overlay(hosts), random.Random(1)
    for form in request(flavor).forms(hosts.resources):
        with contextlib.suppress(errors.NoValidHost):
            while True:
                PIPELINE.select(overlay, form, rng)
                placed += 1
    assert sum(one.instances for one in found) == placed
    if placed:
        assert found[0].ends in ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB')


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
    found = headroom.fits(PIPELINE, own, request(flavor), 'nova', True)
    assert [(one.place, one.instances) for one in found] == [
        ('both', 3), ('shared', 2),
    ]  # fmt: skip
    assert before == {
        name: one.used.tolist() for name, one in own.resources.items()
    }
    requests = [request(flavor) for _ in range(6)]
    moves = headroom.drain(PIPELINE, own, requests, 'nova')
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
    moves = list(
        headroom.drain(PIPELINE, table({'hosts': hosts}), requests, 'nova')
    )
    told = [(move.request.flavor.memory_mb, move.host) for move in moves]
    assert told == [(2500, 'b'), (900, 'a'), (600, None)]
    assert 'RamFilter' in moves[2].reason
    assert moves[0].zone == 'nova'


def test_number_is_not_told_when_a_flavor_asks_for_no_resource():
    inventory = {'hosts': [{'host': 'a', 'vcpus': 4, 'memory_mb': 4000}]}
    nothing = {'vcpus': 0, 'memory_mb': 0, 'root_gb': 0}
    found = headroom.fits(PIPELINE, table(inventory), request(nothing), 'nova')
    assert found == [('nova', 1, None, '')]
