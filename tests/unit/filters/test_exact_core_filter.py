"""ExactCoreFilter requires exactly the flavor's vCPUs to be free."""

from __future__ import annotations

from scheduler_service.filters.hosts.exact_core_filter import ExactCoreFilter
from tests.support.plugins import inventory, passing, reason

HOSTS = inventory(
    a={'vcpus': 4},
    b={'vcpus': 4, 'vcpus_used': 2},
    c={'vcpus': 2, 'vcpus_used': 2},
    d={},
)


def test_only_hosts_with_exactly_that_many_free_pass():
    assert passing(ExactCoreFilter(), HOSTS, {'flavor': {'vcpus': 2}}) == ['b']


def test_a_host_that_reports_no_vcpus_fails_even_a_flavor_without_any():
    request = {'flavor': {'vcpus': 0}}
    assert passing(ExactCoreFilter(), HOSTS, request) == ['c']
    assert reason(ExactCoreFilter(), HOSTS, request, host='d') == (
        'the host reports no vCPUs'
    )


def test_allocation_ratios_do_not_count():
    document = inventory(a={'vcpus': 2, 'cpu_allocation_ratio': 2.0})
    request = {'flavor': {'vcpus': 4}}
    assert reason(ExactCoreFilter(), document, request) == (
        'exactly 4 vCPUs must be free, 2 are'
    )
