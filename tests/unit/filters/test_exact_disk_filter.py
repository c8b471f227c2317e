"""ExactDiskFilter requires exactly the requested disk to be free."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.exact_disk_filter import ExactDiskFilter
from tests.support.plugins import inventory, passing, reason

HOSTS = inventory(
    a={'local_gb': 4},
    b={'local_gb': 4, 'local_gb_used': 2},
    c={'local_gb': 4, 'disk_available_least': 1},
)


@pytest.mark.parametrize(
    ('flavor', 'expected'),
    [
        ({'root_gb': 3, 'ephemeral_gb': 1}, ['a']),
        ({'root_gb': 1, 'swap': 1024}, ['b']),
        ({'root_gb': 1}, ['c']),
        ({'root_gb': 1, 'swap': 1}, []),
    ],
)
def test_only_hosts_with_exactly_that_much_free_pass(flavor, expected):
    assert passing(ExactDiskFilter(), HOSTS, {'flavor': flavor}) == expected


def test_the_reason_gives_both_amounts_in_mb():
    request = {'flavor': {'root_gb': 1}}
    assert reason(ExactDiskFilter(), HOSTS, request) == (
        'exactly 1024 MB of disk must be free, 4096 are'
    )
