"""Instances of one request take NUMA cells, pages and devices in turn."""

from __future__ import annotations

import gc
import random
import types

import pytest

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.filters.hosts import all_filters
from scheduler_service.filters.numa_placement import with_instance
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.search_cache import SearchCache
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.load_weigher import RAMWeigher
from tests.support.time_slices import in_turns

SETTINGS = Settings(
    cpu_allocation_ratio=1.0,
    ram_allocation_ratio=1.0,
    pci_aliases=('{"name": "nic", "vendor_id": "8086"}',),
)
BOTH = ('NUMATopologyFilter', 'PciPassthroughFilter')


def cell(number, **fields):
    """Return a cell with four CPUs on two cores, and 4096 MB."""
    cpus = [*range(4 * number, 4 * number + 4)]
    return {
        'id': number,
        'cpuset': cpus,
        'siblings': [cpus[:2], cpus[2:]],
        'memory': 4096,
        **fields,
    }


def pool(numa_node, count=1):
    return {'vendor_id': '8086', 'numa_node': numa_node, 'count': count}


def hosts(*reports):
    """Return hosts of much memory, those first in the list with the most."""
    return {
        'hosts': [
            {
                'host': f'h{at}',
                'vcpus': 64,
                'memory_mb': 64000 - 20000 * at,
                **report,
            }
            for at, report in enumerate(reports)
        ]
    }


def pipeline(*names, cache=None):
    by_name = {kind.name: kind for kind in all_filters()}
    chain = [by_name[name]() for name in names or BOTH]
    return HostPipeline(chain, [RAMWeigher()], SETTINGS, cache=cache)


def request(count, vcpus=1, memory_mb=512, devices=(), **extra_specs):
    specs = {f'hw:{name}': value for name, value in extra_specs.items()}
    made = documents.request(
        {
            'num_instances': count,
            'flavor': {
                'vcpus': vcpus,
                'memory_mb': memory_mb,
                'extra_specs': specs,
            },
            'pci_requests': list(devices),
        }
    )
    # No host offers PCPU.
    return made.with_ids().offered_form(['VCPU'])


def device(policy='legacy', count=1):
    return {
        'alternatives': [{'vendor_id': '8086'}],
        'count': count,
        'numa_policy': policy,
    }


def places(asked, document, chain=None, found=None):
    """Return the hosts of the instances, in their order; [] for no host."""
    try:
        result = (chain or pipeline()).select(
            Overlay(found or table(document)), asked, random.Random(1)
        )
    except errors.NoValidHost:
        return []
    return [
        assignment.placement.selected.host for assignment in result.assignments
    ]


def cells(*some):
    return {'numa_topology': {'cells': list(some)}}


PAGES = [{'size_kb': 2048, 'total': 512, 'used': 0, 'reserved': 0}]
CASES = {
    'dedicated CPUs': (
        request(3, vcpus=2, cpu_policy='dedicated'),
        hosts(cells(cell(0)), cells(cell(0))),
        ['h0', 'h0', 'h1'],
    ),
    'whole cores': (
        request(2, cpu_policy='dedicated', cpu_thread_policy='isolate'),
        hosts(cells(cell(0, pinned_cpus=[0])), cells(cell(0))),
        ['h0', 'h1'],
    ),
    'emulator threads': (
        request(2, cpu_policy='dedicated', emulator_threads_policy='isolate'),
        hosts(cells(cell(0, pinned_cpus=[0])), cells(cell(0))),
        ['h0', 'h1'],
    ),
    'shared CPUs': (
        request(3, vcpus=2, numa_nodes='1'),
        hosts(cells(cell(0)), cells(cell(0))),
        ['h0', 'h0', 'h1'],
    ),
    'memory': (
        request(2, memory_mb=3000, numa_nodes='1'),
        hosts(cells(cell(0)), cells(cell(0))),
        ['h0', 'h1'],
    ),
    'pages': (
        request(3, mem_page_size='2MB'),
        hosts(cells(cell(0, mempages=PAGES)), cells(cell(0, mempages=PAGES))),
        ['h0', 'h0', 'h1'],
    ),
    'two cells': (
        request(3, vcpus=4, numa_nodes='2'),
        hosts(cells(cell(0), cell(1)), cells(cell(0), cell(1))),
        ['h0', 'h0', 'h1'],
    ),
    'devices': (
        request(3, devices=[device()]),
        hosts(
            {'pci_device_pools': [pool(None, 2)]},
            {'pci_device_pools': [pool(None, 2)]},
        ),
        ['h0', 'h0', 'h1'],
    ),
    'devices near cells': (
        # The only free CPUs are two, near one device of two.
        request(2, numa_nodes='1', devices=[device('required')]),
        hosts(
            {
                **cells(cell(0, cpu_usage=2), cell(1, cpu_usage=4)),
                'pci_device_pools': [pool(0), pool(1)],
            },
            {**cells(cell(0)), 'pci_device_pools': [pool(0)]},
        ),
        ['h0', 'h1'],
    ),
    'too many': (
        request(3, vcpus=2, cpu_policy='dedicated'),
        hosts(cells(cell(0))),
        [],
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_instances_take_cells_and_devices_of_their_host(case):
    asked, document, expected = CASES[case]
    assert places(asked, document) == expected


@pytest.mark.parametrize('case', [case for case in CASES if CASES[case][2]])
def test_it_holds_in_turns_with_others_in_between(case):
    asked, document, expected = CASES[case]
    found, chain = table(document), pipeline()
    result = in_turns(chain, found, asked)
    assert [
        assignment.placement.selected.host for assignment in result.assignments
    ] == expected


def test_a_search_with_a_cache_has_the_same_places():
    for asked, document, expected in CASES.values():
        cache = SearchCache(min_hosts=0)
        assert places(asked, document, pipeline(cache=cache)) == expected
        assert cache.hits + cache.misses


def test_requests_of_the_same_shape_do_not_see_each_other():
    asked, document, expected = CASES['dedicated CPUs']
    found, chain = table(document), pipeline()
    for _ in range(2):
        overlay = Overlay(found)
        result = chain.select(overlay, asked, random.Random(1))
        overlay.forget()
        assert [
            assignment.placement.selected.host
            for assignment in result.assignments
        ] == expected

    def check(turn):
        single = request(1, vcpus=2, cpu_policy='dedicated')
        overlay = Overlay(found)
        result = chain.select(overlay, single, random.Random(1))
        assert result.assignments[0].placement.selected.host == 'h0'
        overlay.forget()

    in_turns(chain, found, asked, check)
    assert found.builds is None


def test_they_count_only_with_their_filters():
    asked, document, _ = CASES['dedicated CPUs']
    assert places(asked, document, pipeline('ComputeFilter')) == ['h0'] * 3
    asked, document, _ = CASES['devices']
    assert places(asked, document, pipeline('NUMATopologyFilter')) == (
        ['h0'] * 3
    )


def test_the_refusal_says_how_many_instances_are_there():
    asked, document, _ = CASES['too many']
    with pytest.raises(errors.NoValidHost) as caught:
        pipeline().select(Overlay(table(document)), asked, random.Random(1))
    assert caught.value.facts['placed'] == 2
    assert 'beside 2 of the same request' in str(caught.value.facts)


def test_instances_leave_no_reference_cycles():
    """To collect thousands of cells takes longer than a turn."""

    def functions():
        return sum(
            isinstance(each, types.FunctionType) for each in gc.get_objects()
        )

    asked, document, expected = CASES['dedicated CPUs']
    gc.collect()
    gc.disable()
    try:
        found, chain = table(document), pipeline()
        overlay = Overlay(found)
        chain.select(overlay, asked, random.Random(1))
        overlay.forget()
        before = functions()
        found.topology.clear()
        with_instance.cache_clear()
        assert places(asked, document, chain, found) == expected
        assert functions() == before
    finally:
        gc.enable()
