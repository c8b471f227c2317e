"""AggregateNumInstancesFilter takes the limit from aggregate metadata."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.aggregate_num_instances_filter import (
    AggregateNumInstancesFilter,
)
from tests.support.plugins import aggregate, inventory, passing, reason


def host(*limits):
    return inventory(
        a={'num_instances': 5},
        aggregates=tuple(
            aggregate('a', max_instances_per_host=limit) for limit in limits
        ),
    )


@pytest.mark.parametrize(
    ('limits', 'passes'),
    [
        ((), True),
        (('5',), False),
        (('6',), True),
        (('60', '5'), False),
        (('5', 'many'), True),
        (('',), True),
    ],
)
def test_the_least_limit_of_the_aggregates_counts(limits, passes):
    hosts = passing(AggregateNumInstancesFilter(), host(*limits))
    assert hosts == (['a'] if passes else [])


def test_a_limit_holds_only_for_the_hosts_of_its_aggregate():
    document = inventory(
        a={'num_instances': 5},
        b={'num_instances': 5},
        aggregates=(aggregate('b', max_instances_per_host='1'),),
    )
    assert passing(AggregateNumInstancesFilter(), document) == ['a']


def test_the_reason_gives_the_limit_of_the_host():
    assert reason(AggregateNumInstancesFilter(), host('3')) == (
        'the host has 5 instances, and must have fewer than 3'
    )
