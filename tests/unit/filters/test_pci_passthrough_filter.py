"""PciPassthroughFilter passes hosts with the requested devices."""

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.filters.hosts.pci_passthrough_filter import (
    PciPassthroughFilter,
)
from tests.support.plugins import has_opinion, inventory, passing, reason

ALIASES = (
    '{"name": "x710", "vendor_id": "8086", "product_id": "1572"}',
    '{"name": "nic", "vendor_id": "8086", "product_id": "1572", '
    '"device_type": "type-VF"}',
    '{"name": "nic", "vendor_id": "8086", "product_id": "10fb", '
    '"device_type": "type-VF"}',
    '{"name": "whole", "vendor_id": "8086", "product_id": "1572", '
    '"device_type": "type-PF"}',
)
SETTINGS = {'pci_aliases': ALIASES}


def host(*pools):
    return inventory(a={'pci_device_pools': list(pools)})


def pool(count, **fields):
    return {
        'vendor_id': '8086',
        'product_id': '1572',
        'count': count,
        **fields,
    }


def devices(alias):
    return {'flavor': {'extra_specs': {'pci_passthrough:alias': alias}}}


def passes(document, alias):
    hosts = passing(
        PciPassthroughFilter(), document, devices(alias), **SETTINGS
    )
    return hosts == ['a']


@pytest.mark.parametrize(
    ('alias', 'expected'),
    [
        ('nic:3', True),
        ('nic:4', False),
        ('x710:2, nic :2', False),
        ('x710:2', True),
        ('x710:3', False),
        # All at once: a device is given only one time.
        ('x710:2,nic:1', True),
    ],
)
def test_free_devices_of_all_pools_have_to_suffice(alias, expected):
    document = host(
        pool(2), pool(1, product_id='10fb'), pool(5, vendor_id='10de')
    )
    assert passes(document, alias) is expected


def test_a_host_without_devices_fails():
    assert not passes(host(), 'nic:1')
    assert not passes(inventory(a={}), 'nic:1')


@pytest.mark.parametrize('device_type', ['type-PF', 'vdpa'])
def test_some_types_are_given_only_to_requests_for_them(device_type):
    document = host(pool(1, dev_type=device_type))
    assert not passes(document, 'nic:1')
    assert passes(document, 'whole:1') is (device_type == 'type-PF')


def test_remote_managed_devices_are_given_to_nobody():
    assert not passes(host(pool(1, tags={'remote_managed': 'true'})), 'nic:1')
    assert passes(host(pool(1, tags={'remote_managed': 'false'})), 'nic:1')


def test_it_has_no_opinion_without_requested_devices():
    assert not has_opinion(PciPassthroughFilter(), host(pool(1)))


@pytest.mark.parametrize('alias', ['unknown:1', 'nic:many', 'nic'])
def test_an_unknown_alias_or_a_bad_count_fails_the_request(alias):
    with pytest.raises(errors.InvalidRequest):
        passes(host(pool(1)), alias)


def test_the_reason_gives_what_is_requested_and_free():
    sentence = reason(
        PciPassthroughFilter(),
        host(pool(1), pool(2, vendor_id='10de')),
        devices('nic:2,x710:1'),
        **SETTINGS,
    )
    assert sentence == (
        'PCI devices nic:2, x710:1 requested, the host has 3 of any kind free'
    )


@pytest.mark.parametrize(
    ('alternatives', 'count', 'expected'),
    [
        ([{'vendor_id': '8086'}], 2, True),
        ([{'vendor_id': '8086'}], 3, False),
        ([{'vendor_id': '1af4'}], 1, False),
        # One of them will do.
        ([{'vendor_id': '1af4'}, {'product_id': '1572'}], 1, True),
        # Tags are properties, too.
        ([{'vendor_id': '8086', 'physical_network': 'p1'}], 2, True),
        ([{'physical_network': 'p2'}], 1, False),
        ([{'physical_network': None}], 1, False),
        ([{'dev_type': 'type-PF'}], 1, False),
    ],
)
def test_a_request_may_list_devices_itself(alternatives, count, expected):
    document = host(
        pool(2, tags={'physical_network': 'p1', 'dev_type': 'type-VF'})
    )
    request = {
        'pci_requests': [{'count': count, 'alternatives': alternatives}]
    }
    hosts = passing(PciPassthroughFilter(), document, request, **SETTINGS)
    assert (hosts == ['a']) is expected


def test_listed_devices_go_before_the_alias_of_the_flavor():
    request = {
        **devices('unknown:1'),
        'pci_requests': [{'alternatives': [{'vendor_id': '8086'}]}],
    }
    filter_ = PciPassthroughFilter()
    assert passing(filter_, host(pool(1)), request, **SETTINGS) == ['a']
    assert reason(filter_, host(), request) == (
        'PCI devices devices:1 requested, the host has 0 of any kind free'
    )


def test_remote_managed_devices_are_given_to_requests_for_them():
    document = host(pool(1, tags={'remote_managed': 'true'}))
    request = {
        'pci_requests': [{'alternatives': [{'remote_managed': 'True'}]}]
    }
    filter_ = PciPassthroughFilter()
    assert passing(filter_, document, request, **SETTINGS) == ['a']
    assert passing(filter_, host(pool(1)), request, **SETTINGS) == []


@pytest.mark.parametrize('policy', ['legacy', 'required', 'socket'])
def test_the_distance_of_devices_is_left_to_the_filter_of_cells(policy):
    cells = [
        {
            'id': at,
            'cpuset': [at],
            'memory': 1024,
            'cpu_usage': at,
            'socket': at,
        }
        for at in (0, 1)
    ]
    document = inventory(
        a={
            'pci_device_pools': [pool(1, numa_node=1)],
            'numa_topology': {'cells': cells},
        }
    )
    asked = {
        'numa_topology': {'cells': [{'cpus': 1, 'memory_mb': 512}]},
        'pci_requests': [
            {'alternatives': [{'vendor_id': '8086'}], 'numa_policy': policy}
        ],
    }
    ratios = {'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0}
    assert passing(PciPassthroughFilter(), document, asked, **ratios) == ['a']
    assert passing(NUMATopologyFilter(), document, asked, **ratios) == []
