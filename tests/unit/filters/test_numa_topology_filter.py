"""NUMATopologyFilter fits the cells of an instance on those of a host."""

from __future__ import annotations

import json

import pytest

from scheduler_service import errors
from scheduler_service.filters import numa
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import has_opinion, inventory, passing, reason

SETTINGS = {'cpu_allocation_ratio': 2.0, 'ram_allocation_ratio': 1.0}


def cell(**fields):
    """Return a host cell with four CPUs on two cores, and 1024 MB."""
    return {
        'cpuset': [0, 1, 2, 3],
        'siblings': [[0, 1], [2, 3]],
        'memory': 1024,
        **fields,
    }


def host(*cells):
    return inventory(a={'numa_topology': {'cells': list(cells)}})


def request(vcpus=2, memory_mb=512, **extra_specs):
    specs = {f'hw:{name}': value for name, value in extra_specs.items()}
    return {
        'flavor': {
            'vcpus': vcpus,
            'memory_mb': memory_mb,
            'extra_specs': specs,
        }
    }


def passes(document, request_):
    hosts = passing(NUMATopologyFilter(), document, request_, **SETTINGS)
    return hosts == ['a']


def test_ratios_of_the_cells_go_before_those_of_the_host():
    wanted = request(6, numa_nodes='1')
    full = cell(cpuset=[*range(6)], cpu_usage=6)
    assert passes(host(full), wanted)
    for ratio, expected in ((1.0, False), (1.5, False), (3.0, True)):
        document = host(full)
        topology = document['hosts'][0]['numa_topology']
        topology['cpu_allocation_ratio'] = ratio
        assert passes(document, wanted) is expected
        settled = {**SETTINGS, 'cpu_allocation_ratio': 1.0}
        hosts = passing(NUMATopologyFilter(), document, wanted, **settled)
        assert (hosts == ['a']) is expected


@pytest.mark.parametrize('ratio', [-1, 'x', 1e99])
def test_a_topology_with_an_odd_ratio_cannot_be_read(ratio):
    document = host(cell())
    document['hosts'][0]['numa_topology']['ram_allocation_ratio'] = ratio
    assert not numa.why_unreadable(text_of(host(cell())))
    assert numa.why_unreadable(text_of(document))


def text_of(document):
    """Return the topology of the only host, as it is stored."""
    return json.dumps(document['hosts'][0]['numa_topology']).encode()


def test_it_has_no_opinion_without_a_requested_topology():
    assert not has_opinion(NUMATopologyFilter(), host(), request())


def test_a_host_that_reports_no_topology_fails():
    assert not passes(inventory(a={}), request(numa_nodes='1'))
    assert not passes(host(), request(numa_nodes='1'))


@pytest.mark.parametrize(
    ('cells', 'request_', 'expected'),
    [
        ([cell(), cell()], request(numa_nodes='2'), True),
        # Each guest cell has a host cell of its own.
        ([cell()], request(numa_nodes='2'), False),
        # A full cell leaves one for the two guest cells.
        ([cell(), cell(memory_usage=1024)], request(numa_nodes='2'), False),
        # The guest cells differ, and only one order of them fits.
        (
            [cell(), cell(memory=256)],
            request(
                4,
                768,
                numa_nodes='2',
                **{
                    'numa_cpus.0': '2',
                    'numa_mem.0': '256',
                    'numa_cpus.1': '0-3,^2',
                    'numa_mem.1': '512',
                },
            ),
            True,
        ),
    ],
)
def test_every_guest_cell_needs_a_host_cell(cells, request_, expected):
    assert passes(host(*cells), request_) is expected


@pytest.mark.parametrize(
    ('fields', 'vcpus', 'expected'),
    [
        # 4 CPUs at a ratio of 2 are 8, of which 6 or 7 are used.
        ({'cpu_usage': 6}, 2, True),
        ({'cpu_usage': 7}, 2, False),
        # One guest cell cannot overcommit against itself.
        ({}, 4, True),
        ({}, 5, False),
    ],
)
def test_shared_cpus_fit_under_the_allocation_ratio(fields, vcpus, expected):
    request_ = request(vcpus, numa_nodes='1')
    assert passes(host(cell(**fields)), request_) is expected


@pytest.mark.parametrize(
    ('fields', 'specs', 'vcpus', 'expected'),
    [
        ({'pinned_cpus': [0]}, {}, 3, True),
        ({'pinned_cpus': [0]}, {}, 4, False),
        # Only the CPUs of pcpuset may be dedicated.
        ({'pcpuset': [2, 3]}, {}, 3, False),
        # Emulator threads get one CPU more.
        ({}, {'emulator_threads_policy': 'isolate'}, 3, True),
        ({}, {'emulator_threads_policy': 'isolate'}, 4, False),
    ],
)
def test_dedicated_cpus_come_from_what_is_free(fields, specs, vcpus, expected):
    request_ = request(vcpus, cpu_policy='dedicated', **specs)
    assert passes(host(cell(**fields)), request_) is expected


def test_memory_of_dedicated_instances_does_not_overcommit():
    document = inventory(
        a={
            'numa_topology': {'cells': [cell(memory_usage=768)]},
            'ram_allocation_ratio': 2.0,
        }
    )
    assert passes(document, request(numa_nodes='1'))
    assert not passes(document, request(cpu_policy='dedicated'))


def test_image_properties_count_where_the_flavor_has_no_extra_spec():
    request_ = {**request(), 'image': {'properties': {'hw_numa_nodes': 2}}}
    assert passes(host(cell(), cell()), request_)
    assert not passes(host(cell()), request_)


@pytest.mark.parametrize(
    'specs',
    [
        {'numa_nodes': '0'},
        {'numa_nodes': 'two'},
        {'numa_nodes': '3'},
        {'mem_page_size': 'huge'},
        {'numa_nodes': '1', 'numa_cpus.0': '0,1', 'numa_mem.0': '1'},
        {'numa_nodes': '129'},
        {'numa_nodes': '9' * 5000},
        {'numa_nodes': '1', 'numa_cpus.0': '0-100000000', 'numa_mem.0': '512'},
        {'numa_nodes': '1', 'numa_cpus.0': '0,4096', 'numa_mem.0': '512'},
        {'numa_nodes': '1', 'numa_cpus.0': '0,1', 'numa_mem.0': '9' * 30},
        {'mem_page_size': '9' * 5000},
    ],
)
def test_a_topology_that_does_not_suit_the_flavor_fails_the_request(specs):
    with pytest.raises(errors.InvalidRequest):
        passes(host(cell()), request(**specs))


@pytest.mark.parametrize('nodes', [129, 1e7, 10**10, float('inf')])
def test_an_image_cannot_ask_for_any_number_of_cells(nodes):
    image = {'properties': {'hw_numa_nodes': nodes}}
    with pytest.raises(errors.InvalidRequest, match='from 1 to 128'):
        passes(host(cell()), {**request(), 'image': image})


@pytest.mark.parametrize(
    ('cells', 'specs', 'expected'),
    [
        ([{}], {'numa_nodes': '2'}, '2 NUMA cells requested, the host has 1'),
        (
            [{'cpu_usage': 4}, {'cpu_usage': 3}],
            {'vcpus': 3, 'numa_nodes': '2',
             'numa_cpus.0': '0,1', 'numa_mem.0': '256',
             'numa_cpus.1': '2', 'numa_mem.1': '256'},
            '2 + 1 shared CPUs requested of NUMA cells, free: 1 + 0',
        ),
        (
            [{'pinned_cpus': [0, 1, 2]}],
            {'cpu_policy': 'dedicated'},
            '2 dedicated CPUs requested of NUMA cells, free: 1',
        ),
        (
            [{'memory': 512, 'memory_usage': 100}, {'memory': 300}],
            {'cpu_policy': 'dedicated'},
            '512 MB of memory requested of NUMA cells, free: 412 + 300',
        ),
        (
            [{'mempages': [{'size_kb': 4, 'total': 262144, 'used': 0},
                           {'size_kb': 2048, 'total': 200, 'used': 100,
                            'reserved': 50}]}],
            {'mem_page_size': '2MB'},
            '512 MB of pages (2048 KiB) requested of NUMA cells, free: 100',
        ),
        (
            [{'siblings': [[0, 1], [2, 3]], 'pinned_cpus': [0, 2]}],
            {'cpu_policy': 'dedicated', 'cpu_thread_policy': 'require'},
            '2 CPUs on threads of the same cores requested of NUMA cells, '
            'free: 0',
        ),
        (
            [{'siblings': [[0, 1], [2, 3]], 'pinned_cpus': [0]}],
            {'cpu_policy': 'dedicated', 'cpu_thread_policy': 'isolate'},
            '2 cores of which no thread is taken requested of NUMA cells, '
            'free: 1',
        ),
        (
            [{'cpu_usage': 4}, {'memory': 100}],
            {'numa_nodes': '1'},
            'no NUMA cell has all of 2 shared CPUs requested of NUMA cells, '
            'free: 4 + 0; 512 MB of memory requested of NUMA cells, free: '
            '1,024 + 100',
        ),
    ],
)  # fmt: skip
def test_the_reason_says_what_is_short(cells, specs, expected):
    reported = host(*(cell(**each) for each in cells))
    tight = {**SETTINGS, 'cpu_allocation_ratio': 1.0}
    sentence = reason(
        NUMATopologyFilter(), reported, request(**specs), **tight
    )
    assert sentence == expected


def test_the_reason_says_that_devices_are_too_far():
    document = host(cell(), cell(id=1, cpu_usage=4))
    document['hosts'][0]['pci_device_pools'] = [
        {'vendor_id': '8086', 'numa_node': 1, 'count': 2}
    ]
    asked = {
        **request(numa_nodes='1'),
        'pci_requests': [
            {
                'name': 'nic',
                'count': 1,
                'alternatives': [{'vendor_id': '8086'}],
                'numa_policy': 'required',
            }
        ],
    }
    tight = {**SETTINGS, 'cpu_allocation_ratio': 1.0}
    sentence = reason(NUMATopologyFilter(), document, asked, **tight)
    assert sentence == 'no NUMA cells that fit are near nic:1'


def test_the_reason_is_that_no_topology_is_reported():
    assert reason(
        NUMATopologyFilter(), inventory(a={}), request(numa_nodes='1')
    ) == ('the host reports no NUMA topology')


def test_the_nearest_miss_lacks_least_of_what_most_hosts_lack():
    document = inventory(
        a={'numa_topology': {'cells': [cell(pinned_cpus=[0, 1, 2, 3])]}},
        b={'numa_topology': {'cells': [cell(pinned_cpus=[0, 1, 2])]}},
        c={'numa_topology': {'cells': [cell(memory=100)]}},
        d={},
    )
    made = table(document)
    asked = documents.request(request(cpu_policy='dedicated')).with_ids()
    lacking, unit = NUMATopologyFilter().miss(made, asked, Settings())
    assert dict(zip(made.coded['host'].values, lacking, strict=True)) == {
        'a': 2, 'b': 1, 'c': 0, 'd': 2,
    }  # fmt: skip
    assert unit == 'dedicated CPUs in its NUMA cells'


def test_without_hosts_nothing_fails():
    assert (
        passing(NUMATopologyFilter(), {'hosts': []}, request(numa_nodes='1'))
        == []
    )


@pytest.mark.parametrize(
    ('topology', 'expected'),
    [
        ({'cells': [{'cpus': 2, 'memory_mb': 1024}]}, True),
        ({'cells': [{'cpus': 2, 'memory_mb': 2048}]}, False),
        ({'cells': [{'cpus': 2, 'memory_mb': 512}] * 2}, False),
        # Two CPUs of a core of their own each.
        (
            {
                'cells': [{'cpus': 2, 'memory_mb': 512}],
                'pinned': True,
                'thread_policy': 'isolate',
            },
            True,
        ),
        (
            {
                'cells': [{'cpus': 3, 'memory_mb': 512}],
                'pinned': True,
                'thread_policy': 'isolate',
            },
            False,
        ),
    ],
)
def test_a_topology_that_the_request_states_goes_before_the_flavor(
    topology, expected
):
    asked = {**request(numa_nodes='64'), 'numa_topology': topology}
    assert passes(host(cell(pcpuset=[0, 1, 2, 3])), asked) is expected


def pools(*nodes):
    """Return pools of a device each, on NUMA cells."""
    return [{'vendor_id': '8086', 'count': 1, 'numa_node': n} for n in nodes]


@pytest.mark.parametrize(
    ('policy', 'node', 'expected'),
    [
        ('required', 1, True),
        ('required', 0, False),
        ('required', None, False),
        ('legacy', 0, False),
        ('legacy', None, True),
        ('preferred', 0, True),
        ('socket', 2, True),
        ('socket', 0, False),
    ],
)
def test_devices_are_as_near_as_their_policy_says(policy, node, expected):
    """Only cell 1 has room, and cell 2 is on the same socket."""
    full = cell(cpu_usage=100, socket=0)
    cells = [full, cell(socket=1), cell(cpu_usage=100, socket=1)]
    document = host(*cells)
    document['hosts'][0]['pci_device_pools'] = pools(node)
    devices = [{'alternatives': [{}], 'numa_policy': policy}]
    asked = {**request(numa_nodes='1'), 'pci_requests': devices}
    assert passes(document, asked) is expected
    # Without cells of the instance the policy does not matter.
    assert passes(document, {**request(), 'pci_requests': devices})


@pytest.mark.parametrize(
    ('kind', 'expected'), [('type-VF', True), ('type-PF', False)]
)
def test_a_near_device_counts_also_where_it_is_not_given(kind, expected):
    """As in compute services: others, further away, are not looked at."""
    document = host(cell())
    near, far = pools(0) + pools(None)
    near['tags'] = {'dev_type': kind}
    document['hosts'][0]['pci_device_pools'] = [near, far]
    devices = [{'alternatives': [{}]}]
    asked = {**request(numa_nodes='1'), 'pci_requests': devices}
    assert passes(document, asked) is expected


@pytest.mark.parametrize(
    ('networks', 'expected'),
    [
        ({'physnets': ['a']}, False),
        ({'physnets': ['b']}, True),
        ({'physnets': ['c']}, True),
        ({'tunneled': True}, False),
    ],
)
def test_a_network_needs_a_cell_that_it_has_an_affinity_to(networks, expected):
    near = {'physnets': ['a'], 'tunneled': True}
    document = host(
        cell(cpu_usage=100, network_metadata=near),
        cell(network_metadata={'physnets': ['b'], 'tunneled': False}),
    )
    topology = {'cells': [{'cpus': 2, 'memory_mb': 512}], **networks}
    asked = {**request(), 'numa_topology': topology}
    assert passes(document, asked) is expected


def test_limits_are_the_ratios_that_the_cells_were_fitted_within():
    document = inventory(
        own={'numa_topology': {
            'cells': [cell()], 'cpu_allocation_ratio': 3.0}},
        none={'numa_topology': {'cells': [cell()]},
              'cpu_allocation_ratio': 4.0},
    )  # fmt: skip
    hosts = table(document)
    settings = Settings(**SETTINGS)
    wanted = documents.request(request(numa_nodes='1'))
    own, none = (
        NUMATopologyFilter().numa_limits(hosts, row, wanted, settings)
        for row in (0, 1)
    )
    assert own == {'cpu_allocation_ratio': 3.0, 'ram_allocation_ratio': 1.0}
    assert none['cpu_allocation_ratio'] == 4.0
    plain = documents.request(request())
    assert NUMATopologyFilter().numa_limits(hosts, 0, plain, settings) == {}
