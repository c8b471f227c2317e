"""AvailabilityZoneFilter passes hosts in the requested zone."""

import pytest

from scheduler_service.filters.hosts.aggregate_filter import (
    AvailabilityZoneFilter,
)
from tests.support.plugins import (
    aggregate,
    has_opinion,
    passing,
    plain_hosts,
    reason,
)

# a is in z1, b in z1 and z2, c in no zone of an aggregate.
HOSTS = plain_hosts(
    'abc',
    aggregate('a', 'b', availability_zone='z1'),
    aggregate('b', availability_zone='z2, z3'),
    aggregate('c', ssd='true'),
)


@pytest.mark.parametrize(
    ('zone', 'expected'),
    [
        ('z1', ['a', 'b']),
        # A host may be in several zones: of several aggregates ...
        ('z2', ['b']),
        # ... or of one whose value is a list with commas.
        ('z3', ['b']),
        # Hosts without a zone are in the default zone, others are not.
        ('nova', ['c']),
        ('Z1', []),
        ('nowhere', []),
    ],
)
def test_hosts_in_the_requested_zone_pass(zone, expected):
    request = {'availability_zone': zone}
    assert passing(AvailabilityZoneFilter(), HOSTS, request) == expected


def test_the_default_zone_is_an_option():
    request = {'availability_zone': 'home'}
    hosts = passing(
        AvailabilityZoneFilter(),
        HOSTS,
        request,
        default_availability_zone='home',
    )
    assert hosts == ['c']


@pytest.mark.parametrize('zone', [None, ''])
def test_it_has_no_opinion_without_a_requested_zone(zone):
    request = {'availability_zone': zone}
    assert not has_opinion(AvailabilityZoneFilter(), HOSTS, request)
    assert passing(AvailabilityZoneFilter(), HOSTS, request) == ['a', 'b', 'c']


def test_an_empty_zone_in_metadata_is_a_zone_that_nobody_requests():
    hosts = plain_hosts('a', aggregate('a', availability_zone=''))
    request = {'availability_zone': 'nova'}
    assert passing(AvailabilityZoneFilter(), hosts, request) == []


def test_the_reason_names_the_requested_zone_and_those_of_the_host():
    request = {'availability_zone': 'z9'}
    assert reason(AvailabilityZoneFilter(), HOSTS, request, host='b') == (
        'zone z9 requested, the host is in z1, z2, z3'
    )
