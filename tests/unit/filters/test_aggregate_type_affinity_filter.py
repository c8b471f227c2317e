"""AggregateTypeAffinityFilter reserves hosts for flavors by name."""

import pytest

from scheduler_service.filters.hosts.type_affinity_filter import (
    AggregateTypeAffinityFilter,
)
from tests.support.plugins import aggregate, passing, plain_hosts, reason

# a is for m1.small, b for m1.small and m1.large, c for every flavor.
HOSTS = plain_hosts(
    'abc',
    aggregate('a', 'b', instance_type='m1.small'),
    aggregate('b', instance_type='m1.large, m1.huge'),
)


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('m1.small', ['a', 'b', 'c']),
        ('m1.large', ['b', 'c']),
        ('m1.huge', ['b', 'c']),
        ('M1.small', ['c']),
        (None, ['c']),
    ],
)
def test_reserved_hosts_pass_for_their_flavors_only(name, expected):
    request = {'flavor': {'name': name}}
    hosts = passing(AggregateTypeAffinityFilter(), HOSTS, request)
    assert hosts == expected


def test_an_empty_value_is_for_no_flavor():
    document = plain_hosts('a', aggregate('a', instance_type=''))
    request = {'flavor': {'name': 'm1.small'}}
    assert passing(AggregateTypeAffinityFilter(), document, request) == []


def test_the_reason_names_the_flavors():
    request = {'flavor': {'name': 'm2'}}
    sentence = reason(AggregateTypeAffinityFilter(), HOSTS, request, host='b')
    assert sentence == (
        'the host is reserved for the flavors m1.huge, m1.large, m1.small; '
        'the request has m2'
    )
