"""CoreFilter compares vCPUs under the allocation ratio."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.core_filter import CoreFilter
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import inventory, passing, reason


def host(vcpus, used, ratio=None):
    return inventory(
        a={
            'vcpus': vcpus,
            'vcpus_used': used,
            'cpu_allocation_ratio': ratio,
        }
    )


def flavor(vcpus):
    return {'flavor': {'vcpus': vcpus}}


@pytest.mark.parametrize(
    ('vcpus', 'used', 'ratio', 'requested', 'passes'),
    [
        (4, 7, 2.0, 1, True),
        (4, 8, 2.0, 1, False),
        (1, 0, 0.5, 1, False),
        # Fractions are kept: 3 vCPUs at 1.5 are 4.5.
        (3, 2, 1.5, 2, True),
        (3, 2, 1.5, 3, False),
        # A host over its limit fails even where nothing is requested.
        (4, 9, 2.0, 0, False),
        (4, 8, 2.0, 0, True),
    ],
)
def test_what_is_left_of_vcpus_times_ratio_has_to_suffice(
    vcpus, used, ratio, requested, passes
):
    hosts = passing(CoreFilter(), host(vcpus, used, ratio), flavor(requested))
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize('ratio', [None, 0.0])
def test_a_host_without_a_ratio_has_the_configured_ratio(ratio):
    document = host(4, 8, ratio)
    for configured, expected in ((2.0, []), (3.0, ['a'])):
        hosts = passing(
            CoreFilter(),
            document,
            flavor(4),
            cpu_allocation_ratio=configured,
        )
        assert hosts == expected


def test_a_host_that_reports_no_vcpus_passes():
    assert passing(CoreFilter(), host(0, 0), flavor(9)) == ['a']


def test_an_instance_may_overcommit_against_itself_unless_it_is_forbidden():
    document = host(4, 0, 16.0)
    assert passing(CoreFilter(), document, flavor(5)) == ['a']
    for requested, expected in ((4, ['a']), (5, [])):
        hosts = passing(
            CoreFilter(),
            document,
            flavor(requested),
            allow_self_overcommit=False,
        )
        assert hosts == expected


def test_the_reason_gives_the_figures():
    assert reason(CoreFilter(), host(4, 7, 2.0), flavor(3)) == (
        '3 vCPUs requested, 1 free (limit 8, 7 used)'
    )


def test_the_reason_of_self_overcommit_gives_the_size_of_the_host():
    sentence = reason(
        CoreFilter(),
        host(4, 0, 16.0),
        flavor(5),
        allow_self_overcommit=False,
    )
    assert sentence == (
        '5 vCPUs requested, more than the 4 that the host has in all'
    )


def test_the_limit_is_reported_unless_the_host_reports_no_vcpus():
    hosts = table(host(4, 0, 2.0))
    assert CoreFilter().limits(hosts, 0, Settings()) == {'vcpu': 8.0}
    hosts = table(host(0, 0))
    assert CoreFilter().limits(hosts, 0, Settings()) == {}
