"""AggregateDiskFilter takes the allocation ratio from aggregate metadata."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.aggregate_disk_filter import (
    AggregateDiskFilter,
)
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import aggregate, inventory, passing, reason


def host(*ratios, **fields):
    """A host with 10 GB at its own ratio of 1."""
    return inventory(
        a={'local_gb': 10, 'disk_allocation_ratio': 1.0, **fields},
        aggregates=tuple(
            aggregate('a', disk_allocation_ratio=ratio) for ratio in ratios
        ),
    )


REQUEST = {'flavor': {'root_gb': 15}}


@pytest.mark.parametrize(
    ('ratios', 'passes'),
    [
        ((), False),
        (('2',), True),
        (('2', '1.2'), False),
        (('2', 'bad'), False),
    ],
)
def test_the_least_ratio_of_the_aggregates_counts(ratios, passes):
    hosts = passing(AggregateDiskFilter(), host(*ratios), REQUEST)
    assert hosts == (['a'] if passes else [])


def test_a_small_disk_available_least_counts_as_used_disk():
    document = host('2', disk_available_least=4)
    assert passing(AggregateDiskFilter(), document, REQUEST) == []


def test_the_reason_gives_the_limit_under_the_aggregate_ratio():
    assert reason(AggregateDiskFilter(), host('1.2'), REQUEST) == (
        '15360 MB of disk requested, 12288 free (limit 12288, 0 used)'
    )


def test_claims_are_checked_under_the_same_ratio():
    resource, ratios = AggregateDiskFilter().ratios(
        table(host('2')), Settings()
    )
    assert (resource, ratios.tolist()) == ('DISK_GB', [2.0])
