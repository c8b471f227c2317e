"""AggregateCoreFilter takes the allocation ratio from aggregate metadata."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.aggregate_core_filter import (
    AggregateCoreFilter,
)
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import aggregate, inventory, passing, reason


def host(*ratios):
    """A host with 4 vCPUs at its own ratio of 16, of which 10 are used."""
    return inventory(
        a={'vcpus': 4, 'vcpus_used': 10, 'cpu_allocation_ratio': 16.0},
        aggregates=tuple(
            aggregate('a', cpu_allocation_ratio=ratio) for ratio in ratios
        ),
    )


REQUEST = {'flavor': {'vcpus': 1}}


@pytest.mark.parametrize(
    ('ratios', 'passes'),
    [
        ((), True),
        (('2',), False),
        # The least of several values counts, as a number: 9, not "10".
        (('2', '10'), False),
        (('9', '10'), True),
        # One value that is not a number discards all of them.
        (('2', 'bad'), True),
        (('2,3',), True),
        (('',), True),
        ((' 2 ',), False),
    ],
)
def test_the_least_ratio_of_the_aggregates_counts(ratios, passes):
    hosts = passing(AggregateCoreFilter(), host(*ratios), REQUEST)
    assert hosts == (['a'] if passes else [])


def test_aggregates_of_other_hosts_do_not_matter():
    document = inventory(
        a={'vcpus': 1, 'cpu_allocation_ratio': 1.0},
        b={'vcpus': 1, 'cpu_allocation_ratio': 1.0},
        aggregates=(aggregate('b', cpu_allocation_ratio='4'),),
    )
    request = {'flavor': {'vcpus': 3}}
    assert passing(AggregateCoreFilter(), document, request) == ['b']


def test_a_host_that_reports_no_vcpus_passes():
    document = inventory(
        a={}, aggregates=(aggregate('a', cpu_allocation_ratio='2'),)
    )
    assert passing(AggregateCoreFilter(), document, REQUEST) == ['a']


def test_the_reason_gives_the_limit_under_the_aggregate_ratio():
    assert reason(AggregateCoreFilter(), host('2'), REQUEST) == (
        '1 vCPUs requested, -2 free (limit 8, 10 used)'
    )


def test_claims_are_checked_under_the_same_ratio():
    resource, ratios = AggregateCoreFilter().ratios(
        table(host('2')), Settings()
    )
    assert (resource, ratios.tolist()) == ('VCPU', [2.0])
    assert AggregateCoreFilter().ratios(table(host()), Settings()) is None
