"""Filters on free capacity and on counts, plain and by aggregates."""

import pytest

from scheduler_service.filters.hosts import BUILT_IN
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import (
    aggregate,
    instance,
    inventory,
    passing,
    reason,
)

FILTERS = {kind.name: kind() for kind in BUILT_IN}
CORE, RAM, DISK = (
    FILTERS[name] for name in ('CoreFilter', 'RamFilter', 'DiskFilter')
)
EXACT_CORE, EXACT_RAM, EXACT_DISK = (
    FILTERS[name]
    for name in ('ExactCoreFilter', 'ExactRamFilter', 'ExactDiskFilter')
)


def fields(names, *values):
    return dict(zip(names.split(), values, strict=True))


def cpus(total, used=0, ratio=None):
    names = 'vcpus vcpus_used cpu_allocation_ratio'
    return fields(names, total, used, ratio)


def memory(total, used=0, ratio=None):
    names = 'memory_mb memory_mb_used ram_allocation_ratio'
    return fields(names, total, used, ratio)


def disk(total=10, used=0, ratio=None, least=None):
    names = 'local_gb local_gb_used disk_allocation_ratio disk_available_least'
    return fields(names, total, used, ratio, least)


def passes(host_filter, host, flavor, **settings):
    """Return whether the only host passes."""
    request = {'flavor': flavor}
    return passing(host_filter, inventory(a=host), request, **settings) == [
        'a'
    ]


@pytest.mark.parametrize(
    ('host_filter', 'host', 'flavor', 'expected'),
    [
        (CORE, cpus(4, 7, 2.0), {'vcpus': 1}, True),
        (CORE, cpus(4, 8, 2.0), {'vcpus': 1}, False),
        (CORE, cpus(1, 0, 0.5), {'vcpus': 1}, False),
        # Fractions are kept: 3 vCPUs at 1.5 are 4.5.
        (CORE, cpus(3, 2, 1.5), {'vcpus': 2}, True),
        (CORE, cpus(3, 2, 1.5), {'vcpus': 3}, False),
        # A host over its limit fails even where nothing is requested.
        (CORE, cpus(4, 9, 2.0), {'vcpus': 0}, False),
        (CORE, cpus(4, 8, 2.0), {'vcpus': 0}, True),
        # A host that reports no vCPUs passes.
        (CORE, cpus(0), {'vcpus': 9}, True),
        # The ratio multiplies all of the memory, not what is free of it:
        # 2048 x 1.5 - 1024 = 2048.
        (RAM, memory(2048, 1024, 1.5), {'memory_mb': 2048}, True),
        (RAM, memory(2048, 1024, 1.5), {'memory_mb': 2049}, False),
        # More may be used than there is: 1024 x 2 - 2047 = 1.
        (RAM, memory(1024, 2047, 2.0), {'memory_mb': 1}, True),
        (RAM, memory(1024, 2048, 2.0), {'memory_mb': 1}, False),
        (RAM, memory(1000, 1000, 1.0015), {'memory_mb': 1}, True),
        # A host without memory has room for a flavor without memory.
        (RAM, memory(0, 0, 1.0), {'memory_mb': 0}, True),
        (RAM, memory(0, 1, 1.0), {'memory_mb': 0}, False),
        (DISK, disk(), {'root_gb': 10}, True),
        (DISK, disk(), {'root_gb': 11}, False),
        (DISK, disk(), {'root_gb': 6, 'ephemeral_gb': 4}, True),
        (DISK, disk(), {'root_gb': 6, 'ephemeral_gb': 5}, False),
        # Swap is in MB, root and ephemeral are in GB.
        (DISK, disk(), {'root_gb': 9, 'swap': 1024}, True),
        (DISK, disk(), {'root_gb': 10, 'swap': 1}, False),
        (DISK, disk(10, 10, 1.5), {'root_gb': 5}, True),
        (DISK, disk(10, 15, 1.5), {'root_gb': 1}, False),
        # disk_available_least counts where it is the smaller figure, and
        # may be negative.
        (DISK, disk(least=4), {'root_gb': 4}, True),
        (DISK, disk(least=4), {'root_gb': 5}, False),
        (DISK, disk(10, 8, least=9), {'root_gb': 3}, False),
        (DISK, disk(ratio=1.5, least=-5), {'root_gb': 1}, False),
    ],
)
def test_what_is_left_of_total_times_ratio_has_to_suffice(
    host_filter, host, flavor, expected
):
    assert passes(host_filter, host, flavor) is expected


@pytest.mark.parametrize(
    ('host_filter', 'host', 'flavor', 'option', 'enough'),
    [
        (CORE, cpus(4, 8), {'vcpus': 4}, 'cpu', 3.0),
        (CORE, cpus(4, 8, 0.0), {'vcpus': 4}, 'cpu', 3.0),
        (RAM, memory(1024, 1024), {'memory_mb': 512}, 'ram', 2.0),
    ],
)
def test_a_host_without_a_ratio_has_the_configured_ratio(
    host_filter, host, flavor, option, enough
):
    option = f'{option}_allocation_ratio'
    assert passes(host_filter, host, flavor, **{option: enough})
    assert not passes(host_filter, host, flavor, **{option: enough - 1})


@pytest.mark.parametrize(
    ('host_filter', 'host', 'name', 'fits', 'too_large'),
    [
        (CORE, cpus(4, 0, 16.0), 'vcpus', 4, 5),
        (RAM, memory(1024, 0, 2.0), 'memory_mb', 1024, 2000),
        (DISK, disk(ratio=100.0), 'root_gb', 10, 11),
    ],
)
def test_an_instance_larger_than_the_host_may_be_forbidden(
    host_filter, host, name, fits, too_large
):
    fits, too_large = {name: fits}, {name: too_large}
    assert passes(host_filter, host, too_large)
    forbidden = {'allow_self_overcommit': False}
    assert not passes(host_filter, host, too_large, **forbidden)
    assert passes(host_filter, host, fits, **forbidden)


def test_the_reason_of_self_overcommit_gives_the_size_of_the_host():
    sentence = reason(
        CORE,
        inventory(a=cpus(4, 0, 16.0)),
        {'flavor': {'vcpus': 5}},
        allow_self_overcommit=False,
    )
    assert sentence == (
        '5 vCPUs requested, more than the 4 that the host has in all'
    )


@pytest.mark.parametrize(
    ('host_filter', 'host', 'flavor', 'sentence'),
    [
        (CORE, cpus(4, 7, 2.0), {'vcpus': 3},
         '3 vCPUs requested, 1 free (limit 8, 7 used)'),
        (RAM, memory(1000, 600, 1.0), {'memory_mb': 512},
         '512 MB requested, 400 free (limit 1,000, 600 used)'),
        (DISK, disk(used=6), {'root_gb': 5},
         '5,120 MB of disk requested, 4,096 free (limit 10,240, 6,144 used)'),
        (EXACT_CORE, cpus(2, 0, 2.0), {'vcpus': 4},
         'exactly 4 vCPUs must be free, 2 are'),
        (EXACT_CORE, cpus(0), {'vcpus': 0}, 'the host reports no vCPUs'),
        (EXACT_RAM, memory(1024), {'memory_mb': 512},
         'exactly 512 MB must be free, 1,024 are'),
        (EXACT_DISK, disk(4), {'root_gb': 1},
         'exactly 1,024 MB of disk must be free, 4,096 are'),
    ],
)  # fmt: skip
def test_the_reason_gives_the_figures(host_filter, host, flavor, sentence):
    request = {'flavor': flavor}
    assert reason(host_filter, inventory(a=host), request) == sentence


def test_a_miss_is_what_the_host_lacks_in_mb():
    lacks, unit = RAM.miss(
        table(inventory(a=memory(1000, 600, 1.0))),
        documents.request({'flavor': {'memory_mb': 512}}),
        Settings(),
    )
    assert (lacks.tolist(), unit) == ([112.0], 'MB')


@pytest.mark.parametrize(
    ('host_filter', 'host', 'limits'),
    [
        (CORE, cpus(4, 0, 2.0), {'vcpu': 8.0}),
        (CORE, cpus(0), {}),
        (DISK, disk(ratio=1.5), {'disk_gb': 15.0}),
    ],
)
def test_the_limit_is_reported(host_filter, host, limits):
    hosts = table(inventory(a=host))
    assert host_filter.limits(hosts, 0, Settings()) == limits


EXACT_CPUS = [cpus(4), cpus(4, 2), cpus(2, 2), {}]
EXACT_MEMORY = [memory(1024), memory(1024, 512), {}]
EXACT_DISKS = [disk(4), disk(4, 2), disk(4, least=1)]


@pytest.mark.parametrize(
    ('host_filter', 'hosts', 'flavor', 'expected'),
    [
        (EXACT_CORE, EXACT_CPUS, {'vcpus': 2}, ['b']),
        # A host that reports no vCPUs fails even a flavor without any.
        (EXACT_CORE, EXACT_CPUS, {'vcpus': 0}, ['c']),
        (EXACT_RAM, EXACT_MEMORY, {'memory_mb': 512}, ['b']),
        (EXACT_RAM, EXACT_MEMORY, {}, ['c']),
        (EXACT_DISK, EXACT_DISKS, {'root_gb': 3, 'ephemeral_gb': 1}, ['a']),
        (EXACT_DISK, EXACT_DISKS, {'root_gb': 1, 'swap': 1024}, ['b']),
        (EXACT_DISK, EXACT_DISKS, {'root_gb': 1}, ['c']),
        (EXACT_DISK, EXACT_DISKS, {'root_gb': 1, 'swap': 1}, []),
    ],
)
def test_only_hosts_with_exactly_that_much_free_pass(
    host_filter, hosts, flavor, expected
):
    document = inventory(**dict(zip('abcd', hosts, strict=False)))
    request = {'flavor': flavor}
    assert passing(host_filter, document, request) == expected


def with_aggregates(host, key, values):
    """Return an inventory of one host in an aggregate for each value."""
    return inventory(
        a=host, aggregates=tuple(aggregate('a', **{key: v}) for v in values)
    )


def case(name, key, host, flavor):
    return FILTERS[name], key, host, flavor


# An aggregate filter, its metadata key, a host and a flavor.
OF_CORE = case(
    'AggregateCoreFilter',
    'cpu_allocation_ratio',
    cpus(4, 10, 16.0),
    {'vcpus': 1},
)
OF_RAM = case(
    'AggregateRamFilter',
    'ram_allocation_ratio',
    memory(1000, 0, 1.0),
    {'memory_mb': 2500},
)
OF_DISK = case(
    'AggregateDiskFilter',
    'disk_allocation_ratio',
    disk(10, 0, 1.0),
    {'root_gb': 15},
)
OF_IO_OPS = case(
    'AggregateIoOpsFilter', 'max_io_ops_per_host', {'num_io_ops': 5}, {}
)
OF_INSTANCES = case(
    'AggregateNumInstancesFilter',
    'max_instances_per_host',
    {'num_instances': 5},
    {},
)


@pytest.mark.parametrize(
    ('case', 'values', 'expected'),
    [
        (OF_CORE, (), True),
        (OF_CORE, ('2',), False),
        # The least of several values counts, as a number: 9, not "10".
        (OF_CORE, ('2', '10'), False),
        (OF_CORE, ('9', '10'), True),
        # One value that is not a number discards all of them.
        (OF_CORE, ('2', 'bad'), True),
        (OF_CORE, ('2,3',), True),
        (OF_CORE, ('',), True),
        (OF_CORE, (' 2 ',), False),
        (OF_RAM, (), False),
        (OF_RAM, ('3',), True),
        (OF_RAM, ('3', '2'), False),
        (OF_RAM, ('3', 'bad'), False),
        (OF_DISK, (), False),
        (OF_DISK, ('2',), True),
        (OF_DISK, ('2', '1.2'), False),
        (OF_DISK, ('2', 'bad'), False),
        (OF_IO_OPS, (), True),
        (OF_IO_OPS, ('5',), False),
        (OF_IO_OPS, ('6',), True),
        (OF_IO_OPS, ('10', '5'), False),
        # What is not a whole number leaves the option in place.
        (OF_IO_OPS, ('5', 'x'), True),
        (OF_IO_OPS, ('5.5',), True),
        (OF_IO_OPS, ('5,5',), True),
        (OF_IO_OPS, (' 5 ',), False),
        (OF_INSTANCES, (), True),
        (OF_INSTANCES, ('5',), False),
        (OF_INSTANCES, ('6',), True),
        (OF_INSTANCES, ('60', '5'), False),
        (OF_INSTANCES, ('5', 'many'), True),
        (OF_INSTANCES, ('',), True),
    ],
)
def test_the_least_value_of_the_aggregates_counts(case, values, expected):
    host_filter, key, host, flavor = case
    document = with_aggregates(host, key, values)
    hosts = passing(host_filter, document, {'flavor': flavor})
    assert hosts == (['a'] if expected else [])


@pytest.mark.parametrize(
    ('case', 'value', 'sentence'),
    [
        (OF_CORE, '2', '1 vCPUs requested, -2 free (limit 8, 10 used)'),
        (OF_RAM, '2', '2,500 MB requested, 2,000 free (limit 2,000, 0 used)'),
        (
            OF_DISK,
            '1.2',
            '15,360 MB of disk requested, 12,288 free (limit 12,288, 0 used)',
        ),
        (
            OF_IO_OPS,
            '3',
            'the host has 5 I/O operations, and must have fewer than 3',
        ),
        (
            OF_INSTANCES,
            '3',
            'the host has 5 instances, and must have fewer than 3',
        ),
    ],
)
def test_the_reason_gives_the_limit_of_the_aggregates(case, value, sentence):
    host_filter, key, host, flavor = case
    document = with_aggregates(host, key, [value])
    assert reason(host_filter, document, {'flavor': flavor}) == sentence


@pytest.mark.parametrize(
    ('case', 'resource'),
    [(OF_CORE, 'VCPU'), (OF_RAM, 'MEMORY_MB'), (OF_DISK, 'DISK_GB')],
)
def test_claims_are_checked_under_the_ratio_of_the_aggregates(case, resource):
    host_filter, key, host, _ = case
    hosts = table(with_aggregates(host, key, ['2']))
    name, ratios = host_filter.ratios(hosts, Settings())
    assert (name, ratios.tolist()) == (resource, [2.0])
    assert host_filter.ratios(table(inventory(a=host)), Settings()) is None


def test_aggregates_of_other_hosts_do_not_matter():
    host = cpus(1, 0, 1.0)
    document = inventory(
        a=host, b=host, aggregates=(aggregate('b', cpu_allocation_ratio='4'),)
    )
    request = {'flavor': {'vcpus': 3}}
    assert passing(FILTERS['AggregateCoreFilter'], document, request) == ['b']
    document = inventory(
        a={'num_instances': 5},
        b={'num_instances': 5},
        aggregates=(aggregate('b', max_instances_per_host='1'),),
    )
    assert passing(FILTERS['AggregateNumInstancesFilter'], document) == ['a']


def test_a_host_of_an_aggregate_that_reports_no_vcpus_passes():
    document = with_aggregates({}, 'cpu_allocation_ratio', ['2'])
    request = {'flavor': {'vcpus': 1}}
    assert passing(FILTERS['AggregateCoreFilter'], document, request) == ['a']


def test_a_small_disk_available_least_counts_as_used_disk():
    host = disk(10, 0, 1.0, least=4)
    document = with_aggregates(host, 'disk_allocation_ratio', ['2'])
    request = {'flavor': {'root_gb': 15}}
    assert passing(FILTERS['AggregateDiskFilter'], document, request) == []


@pytest.mark.parametrize(
    ('host_filter', 'column', 'option', 'unit'),
    [
        (
            FILTERS['IoOpsFilter'],
            'num_io_ops',
            'max_io_ops_per_host',
            'I/O operations',
        ),
        (
            FILTERS['NumInstancesFilter'],
            'num_instances',
            'max_instances_per_host',
            'instances',
        ),
    ],
)
def test_hosts_below_the_limit_pass(host_filter, column, option, unit):
    document = inventory(a={column: 2}, b={column: 1}, c={})
    assert passing(host_filter, document, **{option: 2}) == ['b', 'c']
    assert passing(host_filter, document, **{option: 0}) == []
    assert reason(host_filter, document, **{option: 2}) == (
        f'the host has 2 {unit}, and must have fewer than 2'
    )


def test_instances_are_counted_where_a_host_does_not_report_their_number():
    document = inventory(
        a={},
        b={'num_instances': 0},
        instances=(instance(1, 'a'), instance(2, 'b')),
    )
    hosts = passing(
        FILTERS['NumInstancesFilter'], document, max_instances_per_host=1
    )
    assert hosts == ['b']
