"""Room for every class of a claim: total, reserved, ratio, use and units."""

import pytest

from scheduler_service.filters.hosts.core_filter import (
    AggregateCoreFilter,
    CoreFilter,
)
from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.filters.hosts.ram_filter import (
    AggregateRamFilter,
    RamFilter,
)
from scheduler_service.model import documents
from scheduler_service.pipeline.capacity_check import CapacityCheck
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import aggregate, inventory, passing, reason

RATIOS = {
    'cpu_allocation_ratio': 2.0,
    'ram_allocation_ratio': 1.5,
    'disk_allocation_ratio': 1.0,
}
PLAIN = {'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0}
FPGA = 'CUSTOM_FPGA'


def asks(**amounts):
    """Return a request for amounts of classes."""
    specs = {f'resources:{name}': str(of) for name, of in amounts.items()}
    return {'flavor': {'extra_specs': specs}}


def offers(**fields):
    """Return a host that offers FPGAs."""
    return {'resources': {FPGA: fields}}


def left(document, request, *filters):
    return passing(CapacityCheck(filters), document, request, **RATIOS)


@pytest.mark.parametrize(
    ('host', 'amounts', 'fits'),
    [
        ({'vcpus': 4, 'vcpus_used': 5}, {'VCPU': 3}, True),
        ({'vcpus': 4, 'vcpus_used': 5}, {'VCPU': 4}, False),
        # Nothing was collected yet.
        ({'vcpus': 0, 'vcpus_used': 0}, {'VCPU': 4}, True),
        ({'memory_mb': 0}, {'MEMORY_MB': 1}, False),
        ({'memory_mb': 100, 'memory_mb_used': 50}, {'MEMORY_MB': 100}, True),
        ({'memory_mb': 100, 'memory_mb_used': 51}, {'MEMORY_MB': 100}, False),
        ({'local_gb': 10, 'local_gb_used': 4}, {'DISK_GB': 6}, True),
        ({'local_gb': 10, 'local_gb_used': 4}, {'DISK_GB': 7}, False),
        # What the hypervisor says is free goes before.
        (
            {'local_gb': 10, 'local_gb_used': 4, 'disk_available_least': 3},
            {'DISK_GB': 3},
            True,
        ),
        (
            {'local_gb': 10, 'local_gb_used': 4, 'disk_available_least': 3},
            {'DISK_GB': 4},
            False,
        ),
        (offers(total=4, used=1), {FPGA: 3}, True),
        (offers(total=4, used=1), {FPGA: 4}, False),
        (offers(total=4, reserved=2), {FPGA: 2}, True),
        (offers(total=4, reserved=2), {FPGA: 3}, False),
        (offers(total=4, reserved=2, allocation_ratio=2.0), {FPGA: 4}, True),
        (offers(total=4, reserved=2, allocation_ratio=2.0), {FPGA: 5}, False),
        (offers(total=9, min_unit=2), {FPGA: 1}, False),
        (offers(total=9, min_unit=2), {FPGA: 2}, True),
        (offers(total=9, max_unit=4), {FPGA: 4}, True),
        (offers(total=9, max_unit=4), {FPGA: 5}, False),
        (offers(total=9, step_size=3), {FPGA: 6}, True),
        (offers(total=9, step_size=3), {FPGA: 4}, False),
        (offers(total=0), {FPGA: 1}, False),
        # Nobody offers the class.
        ({}, {FPGA: 1}, False),
    ],
)
def test_a_host_passes_when_it_has_room_for_all(host, amounts, fits):
    document = inventory(a=host)
    assert left(document, asks(**amounts)) == (['a'] if fits else [])


@pytest.mark.parametrize(
    ('host', 'amounts', 'sentence'),
    [
        (
            {'vcpus': 4, 'vcpus_used': 5, 'memory_mb': 100},
            {'VCPU': 4, 'MEMORY_MB': 150},
            '4 VCPU asked, lacks 1',
        ),
        (
            {'vcpus': 4, 'vcpus_used': 8, 'memory_mb': 100},
            {'VCPU': 1, 'MEMORY_MB': 151},
            '1 VCPU asked, lacks 1; 151 MEMORY_MB asked, lacks 1',
        ),
        (
            {'vcpus': 4, 'memory_mb': 100},
            {'VCPU': 4, 'MEMORY_MB': 151},
            '151 MEMORY_MB asked, lacks 1',
        ),
        (offers(total=0), {FPGA: 1}, f'1 {FPGA} asked, lacks 1'),
        (
            {'local_gb': 2000, 'disk_available_least': 900},
            {'DISK_GB': 1000},
            '1,000 DISK_GB asked, lacks 100',
        ),
        (
            offers(total=9, used=9, min_unit=2),
            {FPGA: 2},
            f'2 {FPGA} asked, lacks 2',
        ),
        (
            offers(total=9, used=8, step_size=3),
            {FPGA: 1},
            f'1 {FPGA} asked, not offered in such units',
        ),
        ({}, {FPGA: 1}, f'1 {FPGA} asked, no host offers {FPGA}'),
    ],
)
def test_each_class_without_room_is_named_with_what_lacks(
    host, amounts, sentence
):
    document = inventory(a=host)
    found = reason(CapacityCheck(), document, asks(**amounts), **RATIOS)
    assert sorted(found.split('; ')) == sorted(sentence.split('; '))


@pytest.mark.parametrize(
    ('hosts', 'amounts', 'expected'),
    [
        # A class that nobody offers has no nearest miss.
        ([{'memory_mb': 100}], {FPGA: 1, 'MEMORY_MB': 151}, 'MEMORY_MB'),
        ([{'memory_mb': 100}], {FPGA: 1}, None),
        # Of two that keep as many hosts out, the first.
        ([{'memory_mb': 1, 'vcpus': 1}], {'VCPU': 3, 'MEMORY_MB': 9}, 'VCPU'),
        (
            [{'memory_mb': 1, 'vcpus': 1}, {'memory_mb': 1, 'vcpus': 9}],
            {'VCPU': 3, 'MEMORY_MB': 9},
            'MEMORY_MB',
        ),
    ],
)
def test_the_class_that_keeps_most_hosts_out_is_missed(
    hosts, amounts, expected
):
    document = inventory(**{f'h{n}': one for n, one in enumerate(hosts)})
    request = documents.request(asks(**amounts)).with_ids()
    found = CapacityCheck().miss(table(document), request, Settings(**RATIOS))
    assert (found and found[1]) == expected


def left_of_forced(document, flavor, *filters):
    """Return which hosts have room where they are forced."""
    request = documents.request({'flavor': flavor, 'force_hosts': ['a', 'b']})
    hosts = table(document)
    mask = CapacityCheck(filters).mask(
        hosts, request.with_ids(), Settings(**RATIOS)
    )
    return [hosts.node_at(row) for row in mask.nonzero()[0]]


def test_a_class_is_left_to_a_filter_that_compares_it():
    """Unless hosts are forced, since filters do not run then."""
    document = inventory(a={'memory_mb': 100, 'memory_mb_used': 100})
    flavor = {'memory_mb': 100}
    assert left(document, {'flavor': flavor}) == []
    assert left(document, {'flavor': flavor}, RamFilter()) == ['a']
    assert left_of_forced(document, flavor, RamFilter()) == []


@pytest.mark.parametrize(('swap', 'fits'), [(0, True), (100, False)])
def test_a_disk_is_left_to_a_filter_in_mb_where_that_is_whole_gb(swap, fits):
    """A claim takes whole GB: 3 where 2 GB and 100 MB are asked for."""
    request = {'flavor': {'root_gb': 2, 'swap': swap}}
    document = inventory(a={'local_gb': 2})
    ratios = {**RATIOS, 'disk_allocation_ratio': 1.25}
    assert passing(DiskFilter(), document, request, **ratios) == ['a']
    both = passing(CapacityCheck([DiskFilter()]), document, request, **ratios)
    assert (both == ['a']) is fits


def test_the_ratio_of_an_aggregate_is_taken_where_its_filter_is_configured():
    document = inventory(
        a={'vcpus': 4},
        b={'vcpus': 4},
        aggregates=(aggregate('a', cpu_allocation_ratio='3.0'),),
    )
    flavor, of_aggregates = {'vcpus': 12}, AggregateCoreFilter()
    assert left_of_forced(document, flavor) == []
    assert left_of_forced(document, flavor, of_aggregates) == ['a']
    filters = RamFilter(), of_aggregates
    assert left_of_forced(document, flavor, *filters) == ['a']


def miss(document, **flavor):
    """Return the class that keeps most hosts out, and what each lacks."""
    request = documents.request({'flavor': flavor}).with_ids()
    found = CapacityCheck().miss(table(document), request, Settings(**PLAIN))
    return found and (found[1], found[0].tolist())


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
    specs = {'resources:MEMORY_MB': amount}
    request = {'flavor': {'memory_mb': 1, 'extra_specs': specs}}
    document = inventory(
        a={'memory_mb': 1000},
        aggregates=(aggregate('a', ram_allocation_ratio='2.0'),),
    )
    assert passing(AggregateRamFilter(), document, request, **PLAIN) == (
        expected
    )


@pytest.mark.parametrize(
    'kind',
    [CoreFilter, RamFilter, DiskFilter, AggregateCoreFilter],
)
@pytest.mark.parametrize(
    ('request_', 'fits'),
    [
        ({'boot_from_volume': True}, True),
        ({'amounts': {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 10}}, True),
        ({'amounts': {'VCPU': 3, 'MEMORY_MB': 3072, 'DISK_GB': 11}}, False),
        ({'amounts': {}}, True),
        (
            {
                'resource_groups': [
                    {
                        'suffix': '1',
                        'resources': {
                            'VCPU': 3,
                            'MEMORY_MB': 3072,
                            'DISK_GB': 11,
                        },
                    }
                ]
            },
            False,
        ),
    ],
    ids=['volume', 'less', 'more', 'nothing', 'group'],
)
def test_a_capacity_filter_judges_what_the_claim_takes(kind, request_, fits):
    """The flavor has 40 GB, more than any host has."""
    flavor = {'vcpus': 2, 'memory_mb': 2048, 'root_gb': 40}
    document = inventory(a={'vcpus': 2, 'memory_mb': 2048, 'local_gb': 10})
    ratios = dict.fromkeys(PLAIN, 1.0)
    asked = {'flavor': flavor, **request_}
    found = passing(kind(), document, asked, **ratios)
    assert (found == ['a']) is fits
    both = passing(CapacityCheck([kind()]), document, asked, **ratios)
    assert both == found
