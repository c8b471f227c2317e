"""ExactRamFilter requires exactly the flavor's memory to be free."""

from __future__ import annotations

from scheduler_service.filters.hosts.exact_ram_filter import ExactRamFilter
from tests.support.plugins import inventory, passing, reason

HOSTS = inventory(
    a={'memory_mb': 1024},
    b={'memory_mb': 1024, 'memory_mb_used': 512},
    c={},
)


def test_only_hosts_with_exactly_that_much_free_pass():
    request = {'flavor': {'memory_mb': 512}}
    assert passing(ExactRamFilter(), HOSTS, request) == ['b']


def test_a_flavor_without_memory_passes_a_host_without_memory():
    assert passing(ExactRamFilter(), HOSTS) == ['c']


def test_the_reason_gives_both_amounts():
    request = {'flavor': {'memory_mb': 512}}
    assert reason(ExactRamFilter(), HOSTS, request) == (
        'exactly 512 MB must be free, 1024 are'
    )
