"""One odd host changes no filter's verdict about another host."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_service.filters.base import UNREADABLE
from scheduler_service.filters.hosts import BUILT_IN
from scheduler_service.model import Host, documents
from scheduler_service.pipeline.capacity_check import CapacityCheck
from scheduler_service.pipeline.mandatory_filters import MANDATORY_FILTERS
from tests.support import filter_strategies
from tests.support.filter_strategies import SETTINGS, inventories
from tests.support.odd_hosts import (
    ODD,
    odd_hosts,
    odd_metadata,
    unchecked_table,
)

FILTERS = [*MANDATORY_FILTERS, *(kind() for kind in BUILT_IN), CapacityCheck()]
extra_specs = st.one_of(
    filter_strategies.specs,
    st.sampled_from(
        [
            {'capabilities:tier': '>= 2'},
            {'tier': '<= 2', 'capabilities:rack': '!= 5'},
            {'capabilities:cpu_info:maxphysaddr:bits': '>= 40'},
            {'capabilities:stats:tier:rack': '== 1'},
            {'hw:maxphysaddr_bits': '46'},
            {'ssd': '>= 2'},
            {'key': '>= 2', 'hw:cpu_policy': '== 1'},
            {'hw:numa_nodes': '1', 'hw:mem_page_size': '4'},
            {'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'require'},
            {'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'isolate'},
        ]
    ),
)
queries = st.sampled_from(
    [
        ['<', '$stats.tier', 5],
        ['not', ['<', '$stats.tier', 5]],
        ['or', ['=', '$vcpus_used', 1], ['>', '$stats.tier.rack', 'x']],
        ['in', '$cpu_info.maxphysaddr.bits', 1, 2],
        ['=', '$pci_device_pools.count', '$metrics.name'],
        ['and', ['not', ['>=', '$supported_instances', 1]]],
        ['<', '$hypervisor_type', 'x'],
        ['<', '$hypervisor_version', '$stats.rack'],
        ['=', '$service.disabled.x', 1],
    ]
).map(json.dumps)


@st.composite
def requests(draw):
    document = dict(draw(filter_strategies.requests))
    document['flavor'] = {
        **document['flavor'],
        'extra_specs': draw(extra_specs),
    }
    if draw(st.booleans()):
        hints = {**document['scheduler_hints'], 'query': draw(queries)}
        document['scheduler_hints'] = hints
    if draw(st.booleans()):
        bits = {'hw_architecture': 'x86_64', 'hw_maxphysaddr_bits': '42'}
        document['image'] = {'properties': bits}
    return document


def mask_of(host_filter, table, request):
    """Return which hosts pass; every host where it has nothing to say."""
    mask = host_filter.mask(table, request, SETTINGS)
    return np.ones(len(table), np.bool_) if mask is None else mask


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    inventory=inventories,
    document=requests(),
    odd=odd_hosts(),
    metadata=odd_metadata,
)
def test_verdicts_on_others_stay_when_one_host_is_odd(
    inventory, document, odd, metadata
):
    request = documents.request(document).with_ids()
    before = unchecked_table(inventory)
    after = unchecked_table(inventory, odd, metadata)
    row = int(after.rows_of_host(ODD)[0])
    for one in FILTERS:
        try:
            expected = mask_of(one, before, request)
        except (KeyError, TypeError, ValueError):
            # A fault of the request, whatever hosts there are.
            continue
        found = mask_of(one, after, request)
        assert found[:row].tolist() == expected.tolist(), one.name
        if not found[row]:
            reason = one.reason(after, row, request, SETTINGS)
            assert isinstance(reason, str), one.name


def cell(**fields):
    return {'numa_topology': {'cells': [{'memory': 4096, **fields}]}}


NUMA = {'flavor': {'vcpus': 1, 'memory_mb': 64, 'extra_specs': {
    'hw:numa_nodes': '1', 'hw:mem_page_size': 'any'}}}  # fmt: skip
PINNED = {'flavor': {'vcpus': 1, 'memory_mb': 64, 'extra_specs': {
    'hw:cpu_policy': 'dedicated',
    'hw:cpu_thread_policy': 'require'}}}  # fmt: skip
IMAGE = {'image': {'properties': {
    'hw_architecture': 'x86_64', 'hw_maxphysaddr_bits': '42'}}}  # fmt: skip
X86 = [['x86_64', 'kvm', 'hvm']]


def spec(**extra_specs):
    return {'flavor': {'extra_specs': extra_specs}}


@pytest.mark.parametrize(
    ('name', 'good', 'odd', 'request_'),
    [
        ('ComputeCapabilitiesFilter', {'stats': {'gpu': '4'}},
         {'stats': {'gpu': 'true'}}, spec(gpu='>= 2')),
        ('ComputeCapabilitiesFilter',
         {'cpu_info': {'maxphysaddr': {'bits': 46}}},
         {'cpu_info': {'maxphysaddr': {'bits': 'many'}}},
         spec(**{'hw:maxphysaddr_bits': '42'})),
        ('NUMATopologyFilter',
         cell(cpuset=[1], mempages=[{'size_kb': 4, 'total': 10**6}]),
         cell(cpuset=[1], mempages=[{'size_kb': 0, 'total': 10**6}]), NUMA),
        ('NUMATopologyFilter',
         cell(cpuset=[1], mempages=[{'size_kb': 4, 'total': 10**6}]),
         {'numa_topology': {'cells': 7}}, NUMA),
        ('NUMATopologyFilter', cell(cpuset=[1, 2], siblings=[[1, 2]]),
         cell(siblings=[[1, 2]], cpuset=7), PINNED),
        ('PciPassthroughFilter',
         {'pci_device_pools': [{'vendor_id': '8086', 'count': 2}]},
         {'pci_device_pools': [{'vendor_id': '8086', 'count': 'abc'}]},
         spec(**{'pci_passthrough:alias': 'nic:1'})),
        ('PciPassthroughFilter',
         {'pci_device_pools': [{'vendor_id': '8086', 'count': 2}]},
         {'pci_device_pools': [{'vendor_id': '8086', 'count': 2,
                                'tags': ['x']}]},
         spec(**{'pci_passthrough:alias': 'nic:1'})),
        ('ImagePropertiesFilter',
         {'supported_instances': X86, 'cpu_info': {}},
         {'supported_instances': X86, 'cpu_info': 'not JSON'}, IMAGE),
        ('ImagePropertiesFilter',
         {'supported_instances': X86, 'cpu_info': {}},
         {'supported_instances': X86,
          'cpu_info': {'maxphysaddr': {'bits': 'many'}}}, IMAGE),
        ('JsonFilter', {'stats': {'gpu': 4}}, {'stats': {'gpu': 'true'}},
         {'scheduler_hints': {'query': '["<", "$stats.gpu", 5]'}}),
        ('JsonFilter', {'stats': {'gpu': 7}}, {'stats': {'gpu': 'true'}},
         {'scheduler_hints': {'query': '["not", ["<", "$stats.gpu", 5]]'}}),
        ('SimpleCIDRAffinityFilter', {'host_ip': '10.0.0.1'}, {},
         {'scheduler_hints': {'build_near_host_ip': '10.0.0.9'}}),
    ],
)  # fmt: skip
def test_an_odd_host_fails_alone_and_with_the_reason(
    name, good, odd, request_
):
    inventory = {'hosts': [{'host': f'h{n}', **good} for n in range(19)]}
    table = unchecked_table(inventory, Host(host=ODD, **odd), {})
    request = documents.request(request_).with_ids()
    host_filter = next(one for one in FILTERS if one.name == name)
    passes = mask_of(host_filter, table, request)
    assert passes.tolist() == [True] * 19 + [False]
    reason = host_filter.reason(table, 19, request, SETTINGS)
    assert reason.startswith(UNREADABLE)


def test_aggregate_metadata_that_is_no_number_keeps_its_hosts_out_alone():
    document = {
        'hosts': [{'host': name} for name in 'ab'],
        'aggregates': [
            {'id': 1, 'hosts': ['a'], 'metadata': {'gpus': '8'}},
            {'id': 2, 'hosts': ['b'], 'metadata': {'gpus': 'x'}},
        ],
    }
    table = unchecked_table(document)
    request = documents.request(spec(gpus='>= 5')).with_ids()
    for one in FILTERS:
        if one.name in (
            'AggregateInstanceExtraSpecsFilter',
            'AggregateInstanceTypeFilter',
        ):
            assert mask_of(one, table, request).tolist() == [True, False]
            reason = one.reason(table, 1, request, SETTINGS)
            assert reason.startswith(UNREADABLE)
            assert "'x' is no number to compare by >=" in reason
