"""The room for a claim, which is compared whatever filters are configured."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.aggregate_ram_filter import (
    AggregateRamFilter,
)
from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.model import documents
from scheduler_service.pipeline.mandatory_filters import (
    ForceHosts,
    IgnoreHosts,
    RequestedDestination,
)
from scheduler_service.pipeline.room_filter import Resources
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import aggregate, inventory, passing

RATIO = {'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0}


def miss(document, **flavor):
    """Return the class that keeps most hosts out, and what each lacks."""
    request = documents.request({'flavor': flavor}).with_ids()
    found = Resources().miss(table(document), request, Settings(**RATIO))
    return found and (found[1], found[0].tolist())


def test_class_is_named_when_it_keeps_most_hosts_out():
    document = inventory(
        a={'memory_mb': 100, 'vcpus': 4},
        b={'memory_mb': 200, 'vcpus': 4},
        c={'memory_mb': 900, 'vcpus': 1},
    )
    lacking = [200.0, 100.0, -600.0]
    assert miss(document, memory_mb=300, vcpus=2) == ('MEMORY_MB', lacking)


@pytest.mark.parametrize(
    ('memory_mb', 'expected'),
    [(100, None), (101, ('MEMORY_MB', [1.0])), (99, None)],
)
def test_no_class_is_named_when_the_last_unit_fits(memory_mb, expected):
    document = inventory(a={'memory_mb': 100, 'vcpus': 2})
    assert miss(document, memory_mb=memory_mb, vcpus=2) == expected


@pytest.mark.parametrize(
    ('amount', 'expected'), [('2000', ['a']), ('2001', [])]
)
def test_ratio_of_a_configured_filter_bounds_a_claim(amount, expected):
    """The filter itself judges another amount than the claim takes."""
    specs = {'resources:MEMORY_MB': amount}
    request = {'flavor': {'memory_mb': 1, 'extra_specs': specs}}
    document = inventory(
        a={'memory_mb': 1000},
        aggregates=(aggregate('a', ram_allocation_ratio='2.0'),),
    )
    room = Resources([AggregateRamFilter()])
    assert passing(room, document, request, **RATIO) == expected


@pytest.mark.parametrize(('amount', 'expected'), [('10', ['a']), ('11', [])])
def test_disk_of_a_claim_is_compared_when_the_flavor_has_another(
    amount, expected
):
    specs = {'resources:DISK_GB': amount}
    request = {'flavor': {'root_gb': 1, 'extra_specs': specs}}
    document = inventory(a={'local_gb': 10})
    assert passing(DiskFilter(), document, request) == ['a']
    assert passing(Resources([DiskFilter()]), document, request) == expected


@pytest.mark.parametrize(
    ('destination', 'hosts'),
    [
        ({'cell': 'x'}, ['a']),
        ({'cell': 'x', 'allow_cross_cell_move': True}, ['a', 'b', 'c']),
        ({'allow_cross_cell_move': False}, ['a', 'b', 'c']),
        ({'host': 'b', 'cell': 'x'}, ['b']),
    ],
)
def test_a_cell_is_insisted_on_unless_a_move_may_leave_it(destination, hosts):
    document = inventory(a={'cell_uuid': 'x'}, b={'cell_uuid': 'y'}, c={})
    request = {'requested_destination': destination}
    assert passing(RequestedDestination(), document, request) == hosts


NODES = {
    'hosts': [
        {'host': 'a', 'hypervisor_hostname': 'a1'},
        {'host': 'a', 'hypervisor_hostname': 'a2'},
        {'host': 'b', 'hypervisor_hostname': 'b1'},
    ]
}


def nodes_left(host_filter, request):
    """Return the nodes that a filter leaves of those above."""
    hosts = table(NODES)
    parsed = documents.request(request).with_ids()
    mask = host_filter.mask(hosts, parsed, Settings())
    assert mask is not None
    return [hosts.node_at(row) for row in mask.nonzero()[0]]


@pytest.mark.parametrize(
    ('request_', 'nodes'),
    [
        ({'ignore_hosts': ['A']}, ['b1']),
        ({'ignore_nodes': [['a', 'a2']]}, ['a1', 'b1']),
        ({'ignore_nodes': [['a', 'A2'], ['b', 'a1']]}, ['a1', 'a2', 'b1']),
        ({'ignore_hosts': ['b'], 'ignore_nodes': [['a', 'a1']]}, ['a2']),
        ({'ignore_hosts': ['c']}, ['a1', 'a2', 'b1']),
    ],
)
def test_hosts_are_ignored_in_any_case_and_nodes_by_exact_name(
    request_, nodes
):
    assert nodes_left(IgnoreHosts(), request_) == nodes


@pytest.mark.parametrize(
    ('request_', 'nodes'),
    [
        ({'force_hosts': ['A']}, ['a1', 'a2']),
        ({'force_nodes': ['a2', 'b1']}, ['a2', 'b1']),
        ({'force_nodes': ['A2']}, []),
        ({'force_hosts': ['a'], 'force_nodes': ['a2', 'b1']}, ['a2']),
        ({'force_hosts': ['c']}, []),
    ],
)
def test_forced_hosts_and_nodes_have_both_to_be_met(request_, nodes):
    assert nodes_left(ForceHosts(), request_) == nodes
