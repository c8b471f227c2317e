"""What fits where is what the pipeline can place, and a plan counts itself."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.engine import fitting
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.ram_weigher import RAMWeigher

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
    }
)
FLAVOR = st.fixed_dictionaries(
    {
        'vcpus': st.integers(0, 3),
        'memory_mb': st.integers(300, 1500),
        'root_gb': st.integers(0, 5),
    }
)


def request(flavor, **more):
    return documents.request({'flavor': flavor, **more}).with_ids()


@given(hosts=st.lists(HOST, max_size=5), flavor=FLAVOR)
@settings(deadline=None, max_examples=60)
def test_as_many_fit_as_can_be_placed(hosts, flavor):
    inventory = {
        'hosts': [
            {'host': f'h{number}', **host} for number, host in enumerate(hosts)
        ]
    }
    found = fitting.fits(PIPELINE, table(inventory), request(flavor), 'nova')
    overlay, placed = Overlay(table(inventory)), 0
    rng = random.Random(1)
    while True:
        try:
            PIPELINE.select(overlay, request(flavor), rng)
        except errors.NoValidHost:
            break
        placed += 1
    assert sum(one.instances for one in found) == placed
    if placed:
        assert found[0].ends in ('VCPU', 'MEMORY_MB', 'DISK_GB')


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
        fitting.drain(PIPELINE, table({'hosts': hosts}), requests, 'nova')
    )
    told = [(one.request.flavor.memory_mb, one.host) for one in moves]
    assert told == [(2500, 'b'), (900, 'a'), (600, None)]
    assert 'RamFilter' in moves[2].reason
    assert moves[0].zone == 'nova'


def test_number_is_not_told_when_a_flavor_asks_for_no_resource():
    inventory = {'hosts': [{'host': 'a', 'vcpus': 4, 'memory_mb': 4000}]}
    nothing = {'vcpus': 0, 'memory_mb': 0, 'root_gb': 0}
    found = fitting.fits(PIPELINE, table(inventory), request(nothing), 'nova')
    assert found == [('nova', 1, None, '')]
