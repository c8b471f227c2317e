"""ComputeFilter passes hosts that are enabled and up."""

import pytest

from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from tests.support.plugins import inventory, passing, reason


def test_only_hosts_that_are_enabled_and_up_pass():
    hosts = inventory(
        a={},
        b={'state': 'down'},
        c={'status': 'disabled'},
        d={'status': 'disabled', 'state': 'down'},
    )
    assert passing(ComputeFilter(), hosts) == ['a']


@pytest.mark.parametrize(
    ('host', 'expected'),
    [
        ({'state': 'down'}, 'the host is down'),
        ({'status': 'disabled'}, 'the host is disabled'),
        (
            {'status': 'disabled', 'disabled_reason': 'broken fan'},
            'the host is disabled (broken fan)',
        ),
        # What the operator did comes before what the host did.
        (
            {'status': 'disabled', 'state': 'down'},
            'the host is disabled',
        ),
    ],
)
def test_the_reason_says_whether_the_host_is_down_or_disabled(host, expected):
    assert reason(ComputeFilter(), inventory(a=host)) == expected
