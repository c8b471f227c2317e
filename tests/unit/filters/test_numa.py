"""The assignment of guest cells to host cells: as the rule says, and fast."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service import time_slice
from scheduler_service.filters import numa
from scheduler_service.filters.base import UNREADABLE
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.model import Host, documents, requirements
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support import numa_rule
from tests.support.odd_hosts import ODD, unchecked_table
from tests.support.plugins import inventory, passing
from tests.support.waiting import SLOWNESS

RATIOS = Settings(cpu_allocation_ratio=2.0, ram_allocation_ratio=1.5)


def some(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), max_size=6, unique=True)


CELLS = st.fixed_dictionaries(
    {'cpuset': some(7), 'memory': st.integers(0, 1024)},
    optional={
        'pcpuset': st.none() | some(7),
        'pinned_cpus': some(7),
        'siblings': st.lists(some(7), max_size=4),
        'cpu_usage': st.integers(0, 8),
        'memory_usage': st.integers(0, 1024),
        'mempages': st.lists(
            st.fixed_dictionaries(
                {
                    'size_kb': st.sampled_from([4, 2048]),
                    'total': st.integers(0, 131072),
                },
                optional={
                    'used': st.integers(0, 1024),
                    'reserved': st.integers(0, 1024),
                },
            ),
            max_size=3,
        ),
    },
)
HOSTS = st.none() | st.fixed_dictionaries(
    {'cells': st.lists(CELLS, max_size=5)}
)
GUESTS = st.builds(
    numa.GuestTopology,
    cells=st.lists(
        st.builds(
            numa.GuestCell,
            st.integers(0, 4),
            st.integers(0, 4),
            st.sampled_from([0, 2, 256, 512]),
            st.sampled_from(['', 'prefer', 'require', 'isolate']),
            st.sampled_from(['', 'small', 'large', 'any', '4', '2048']),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    pinned=st.booleans(),
    isolated_emulator=st.booleans(),
)


def assert_as_the_rule_says(hosts, guest):
    names = {f'h{at}': host for at, host in enumerate(hosts)}
    document = inventory(
        **{
            name: {} if host is None else {'numa_topology': host}
            for name, host in names.items()
        }
    )
    ratios = {'cpu_allocation_ratio': 2.0, 'ram_allocation_ratio': 1.5}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(requirements.numa, 'derived', lambda *_: guest)
        hosts = passing(NUMATopologyFilter(), document, {}, **ratios)
    assert hosts == [
        name
        for name, host in names.items()
        if numa_rule.passes(guest, host, 2.0, 1.5)
    ]


@settings(max_examples=40, deadline=None)
@given(hosts=st.lists(HOSTS, min_size=1, max_size=6), guest=GUESTS)
def test_every_host_is_judged_as_the_rule_says(hosts, guest):
    assert_as_the_rule_says(hosts, guest)


@settings(max_examples=60, deadline=None)
@given(topology=HOSTS, guest=GUESTS)
def test_only_hosts_that_do_not_fit_lack_anything(topology, guest):
    text = msgspec.json.encode(topology)
    columns = numa.columns_of(text)
    host = numa.Hosts(np.array([0]), np.array([2.0]), np.array([1.5]))
    demands, starts = numa.demands(guest, columns, host)
    lacks = any(each.lacking(starts).any() for each in demands)
    assert not (lacks and numa_rule.passes(guest, topology, 2.0, 1.5))


@settings(max_examples=40, deadline=None)
@given(
    memories=st.lists(st.integers(1, 9), min_size=7, max_size=8, unique=True),
    hosts=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9),
        min_size=1,
        max_size=5,
    ),
)
def test_guest_cells_of_many_kinds_are_matched_as_the_rule_says(
    memories, hosts
):
    """Cells that ask for much memory ask for few CPUs, so none is best."""
    cells = tuple(
        numa.GuestCell(10 - memory, 0, memory) for memory in memories
    )
    guest = numa.GuestTopology(cells)
    topologies = [
        {
            'cells': [
                {'cpuset': list(range(cpus)), 'memory': memory}
                for cpus, memory in some
            ]
        }
        for some in hosts
    ]
    assert_as_the_rule_says(topologies, guest)


def host(cells: int, **fields) -> dict[str, object]:
    cell = {'cpuset': [0, 1, 2, 3], 'memory': 1024, **fields}
    return {'numa_topology': {'cells': [cell] * cells}}


def guest(vcpus, memory_mb, **specs):
    """Return a request for a topology; *specs* are those of ``hw:``."""
    named = {f'hw:{name}': value for name, value in specs.items()}
    flavor = {'vcpus': vcpus, 'memory_mb': memory_mb, 'extra_specs': named}
    return {'flavor': flavor}


@pytest.mark.timeout(60 * SLOWNESS)
def test_more_guest_cells_than_host_cells_are_refused_at_once():
    """To try 17 on 16 in every order would take for ever."""
    request = guest(17, 17, numa_nodes='17')
    document = inventory(a=host(16), b=host(17))
    assert passing(NUMATopologyFilter(), document, request) == ['b']


@pytest.mark.timeout(60 * SLOWNESS)
def test_a_pair_of_cells_for_the_same_host_cell_is_refused_at_once():
    """Every kind fits several cells, and all of them fit too few.

    To try them in every order would take for ever.
    """
    cells = 16
    specs = {'numa_nodes': str(cells)}
    for number in range(cells):
        specs[f'numa_cpus.{number}'] = f'{2 * number}-{2 * number + 1}'
        specs[f'numa_mem.{number}'] = str(10 + number)
    memory = sum(10 + number for number in range(cells))
    request = guest(2 * cells, memory, **specs)
    big = {'cpuset': [0, 1], 'memory': 1024}
    small = {'cpuset': [0, 1], 'memory': 12}
    topology = {'cells': [big] * (cells - 4) + [small] * 4}
    document = inventory(a={'numa_topology': topology})
    assert passing(NUMATopologyFilter(), document, request) == []


def test_work_goes_on_where_it_stopped_when_the_turn_was_over():
    """However short the turns are, the verdicts get finished."""
    document = inventory(
        **{f'h{at}': host(2, memory=100 + at) for at in range(200)}
    )
    hosts = table(document)
    request = documents.request(guest(2, 400, numa_nodes='2'))
    stops = 0
    while True:
        try:
            time_slice.begin(0, lambda: True)
            mask = NUMATopologyFilter().mask(hosts, request, RATIOS)
            break
        except time_slice.TimeSliceOver:
            stops += 1
            assert stops < 20
        finally:
            time_slice.end()
    assert stops > 3
    assert mask.sum() == 100


@pytest.mark.parametrize(
    'topology',
    [
        {'cells': 5},
        {'cells': [5]},
        {'cells': [{'cpuset': 5}]},
        {'cells': [{'cpuset': [0], 'memory': 'much'}]},
        {'cells': [{'cpuset': [0], 'memory': 10**30}]},
        {'cells': [{'siblings': [5]}]},
        {'cells': [{'mempages': [{'size_kb': 0, 'total': 1}]}]},
        {'cells': [{'mempages': [{'size_kb': 4}]}]},
        {'cells': [{'cpuset': [[0]]}]},
    ],
)
def test_a_topology_that_cannot_be_read_fits_nothing(topology):
    odd = Host(host=ODD, numa_topology=topology)
    found = unchecked_table({'hosts': [{'host': 'good', **host(1)}]}, odd, {})
    request = documents.request(guest(0, 1, numa_nodes='1')).with_ids()
    one = NUMATopologyFilter()
    mask = one.mask(found, request, RATIOS)
    assert mask is not None
    assert mask.tolist() == [True, False]
    assert one.reason(found, 1, request, RATIOS).startswith(UNREADABLE)


PAIRS = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ('policy', 'vcpus', 'fields', 'passes'),
    [
        # Each dedicated CPU takes a core of which no thread is in use.
        ('isolate', 1, {'siblings': PAIRS, 'pinned_cpus': [0]}, True),
        ('isolate', 2, {'siblings': PAIRS, 'pinned_cpus': [0]}, False),
        ('isolate', 1, {'siblings': PAIRS, 'pinned_cpus': [0, 2]}, False),
        ('isolate', 2, {'siblings': PAIRS, 'pinned_cpus': []}, True),
        ('isolate', 3, {'siblings': PAIRS, 'pinned_cpus': []}, False),
        # Without cores every free CPU stands for itself.
        ('isolate', 3, {'pinned_cpus': [0]}, True),
        # A thread that instances may not use keeps its core from them.
        ('isolate', 1, {'siblings': [[0, 8], [1, 9]], 'pcpuset': [0]}, False),
        # With threads only where the same CPUs may be shared.
        ('isolate', 1, {'siblings': PAIRS, 'pcpuset': [0, 1]}, False),
        # A core without a usable thread is none.
        ('isolate', 2, {'siblings': [[0], [8]], 'pcpuset': [0, 1]}, False),
        # Both threads of a core have to be free.
        ('require', 2, {'siblings': PAIRS, 'pinned_cpus': [0]}, True),
        ('require', 2, {'siblings': PAIRS, 'pinned_cpus': [0, 2]}, False),
        ('require', 4, {'siblings': PAIRS, 'pinned_cpus': []}, True),
        ('require', 2, {'siblings': [[0, 1], [2]], 'pcpuset': [1, 2]}, False),
        ('require', 2, {'siblings': [[0], [1], [2, 3]]}, True),
        ('require', 3, {'siblings': [[0], [1], [2, 3]]}, False),
    ],
)
def test_dedicated_cpus_fit_when_enough_threads_of_cores_are_free(
    policy, vcpus, fields, passes
):
    cell = {'cpuset': [0, 1, 2, 3], 'memory': 1024, **fields}
    specs = {'cpu_policy': 'dedicated', 'cpu_thread_policy': policy}
    request = guest(vcpus, 512, **specs)
    document = inventory(a={'numa_topology': {'cells': [cell]}})
    hosts = passing(NUMATopologyFilter(), document, request)
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('used', 'asked', 'passes'),
    [
        (None, '2048', True),
        (0, '2048', True),
        (128, '2048', True),
        (129, '2048', False),
        (256, '2048', False),
        (129, 'large', False),
        (128, 'large', True),
        (256, 'any', True),
        (256, 'small', True),
        (0, '1048576', False),
    ],
)
def test_pages_hold_the_memory_when_enough_are_not_used(used, asked, passes):
    """256 MB are 128 pages of 2 MiB."""
    large = {'size_kb': 2048, 'total': 256}
    if used is not None:
        large['used'] = used
    small = {'size_kb': 4, 'total': 65536, 'used': 0}
    cell = {'cpuset': [0, 1], 'memory': 1024, 'mempages': [small, large]}
    request = guest(1, 256, mem_page_size=asked)
    document = inventory(a={'numa_topology': {'cells': [cell]}})
    hosts = passing(NUMATopologyFilter(), document, request)
    assert hosts == (['a'] if passes else [])


def test_pages_of_one_kilobyte_are_pages():
    cell = {
        'cpuset': [0],
        'memory': 64,
        'mempages': [{'size_kb': 1, 'total': 65536}],
    }
    request = guest(1, 64, mem_page_size='1')
    document = inventory(a={'numa_topology': {'cells': [cell]}})
    assert passing(NUMATopologyFilter(), document, request) == ['a']
