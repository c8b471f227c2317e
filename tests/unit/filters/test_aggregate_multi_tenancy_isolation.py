"""AggregateMultiTenancyIsolation reserves hosts for projects."""

import pytest

from scheduler_service.filters.hosts.aggregate_multi_tenancy_isolation import (
    AggregateMultiTenancyIsolation,
)
from tests.support.plugins import aggregate, passing, plain_hosts, reason

# a is for p1 and p2, b for p3, c for all projects.
HOSTS = plain_hosts(
    'abc',
    aggregate('a', filter_tenant_id='p1, p2'),
    aggregate('b', filter_tenant_id='p3'),
    aggregate('b', 'c', ssd='true'),
)


@pytest.mark.parametrize(
    ('project_id', 'expected'),
    [
        ('p1', ['a', 'c']),
        ('p2', ['a', 'c']),
        ('p3', ['b', 'c']),
        # The filter keeps others out; it does not keep a project in.
        ('p9', ['c']),
        ('P1', ['c']),
        (None, ['c']),
    ],
)
def test_reserved_hosts_pass_for_their_projects_only(project_id, expected):
    request = {'project_id': project_id}
    hosts = passing(AggregateMultiTenancyIsolation(), HOSTS, request)
    assert hosts == expected


def test_every_key_with_the_prefix_adds_projects():
    document = plain_hosts(
        'a',
        aggregate('a', filter_tenant_id='p1', filter_tenant_id2='p2'),
        aggregate('a', **{'filter_tenant_id:3': 'p3'}),
    )
    for project_id, expected in (
        ('p1', ['a']),
        ('p2', ['a']),
        ('p3', ['a']),
        ('p4', []),
    ):
        request = {'project_id': project_id}
        hosts = passing(AggregateMultiTenancyIsolation(), document, request)
        assert hosts == expected


def test_an_empty_value_is_for_nobody():
    document = plain_hosts('a', aggregate('a', filter_tenant_id=''))
    request = {'project_id': 'p1'}
    hosts = passing(AggregateMultiTenancyIsolation(), document, request)
    assert hosts == []


@pytest.mark.parametrize(
    ('host', 'expected'),
    [
        (
            'a',
            'filter_tenant_id metadata reserves the host for 2 other projects '
            'than p9',
        ),
        (
            'b',
            'filter_tenant_id metadata reserves the host for 1 other project '
            'than p9',
        ),
    ],
)
def test_the_reason_does_not_name_the_other_projects(host, expected):
    request = {'project_id': 'p9'}
    sentence = reason(
        AggregateMultiTenancyIsolation(), HOSTS, request, host=host
    )
    assert sentence == expected
