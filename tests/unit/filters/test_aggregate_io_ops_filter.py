"""AggregateIoOpsFilter takes the limit from aggregate metadata."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.aggregate_io_ops_filter import (
    AggregateIoOpsFilter,
)
from tests.support.plugins import aggregate, inventory, passing, reason


def host(*limits):
    return inventory(
        a={'num_io_ops': 5},
        aggregates=tuple(
            aggregate('a', max_io_ops_per_host=limit) for limit in limits
        ),
    )


@pytest.mark.parametrize(
    ('limits', 'passes'),
    [
        ((), True),
        (('5',), False),
        (('6',), True),
        (('10', '5'), False),
        # What is not a whole number leaves the option in place.
        (('5', 'x'), True),
        (('5.5',), True),
        (('5,5',), True),
        ((' 5 ',), False),
    ],
)
def test_the_least_limit_of_the_aggregates_counts(limits, passes):
    hosts = passing(AggregateIoOpsFilter(), host(*limits))
    assert hosts == (['a'] if passes else [])


def test_the_reason_gives_the_limit_of_the_host():
    assert reason(AggregateIoOpsFilter(), host('3')) == (
        'the host has 5 I/O operations, and must have fewer than 3'
    )
