"""AggregateRamFilter takes the allocation ratio from aggregate metadata."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.aggregate_ram_filter import (
    AggregateRamFilter,
)
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import aggregate, inventory, passing, reason


def host(*ratios):
    """A host with 1000 MB at its own ratio of 1, all of it free."""
    return inventory(
        a={'memory_mb': 1000, 'ram_allocation_ratio': 1.0},
        aggregates=tuple(
            aggregate('a', ram_allocation_ratio=ratio) for ratio in ratios
        ),
    )


REQUEST = {'flavor': {'memory_mb': 2500}}


@pytest.mark.parametrize(
    ('ratios', 'passes'),
    [
        ((), False),
        (('3',), True),
        (('3', '2'), False),
        (('3', 'bad'), False),
    ],
)
def test_the_least_ratio_of_the_aggregates_counts(ratios, passes):
    hosts = passing(AggregateRamFilter(), host(*ratios), REQUEST)
    assert hosts == (['a'] if passes else [])


def test_the_reason_gives_the_limit_under_the_aggregate_ratio():
    assert reason(AggregateRamFilter(), host('2'), REQUEST) == (
        '2500 MB requested, 2000 free (limit 2000, 0 used)'
    )


def test_claims_are_checked_under_the_same_ratio():
    resource, ratios = AggregateRamFilter().ratios(
        table(host('3')), Settings()
    )
    assert (resource, ratios.tolist()) == ('MEMORY_MB', [3.0])
