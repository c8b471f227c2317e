"""GroupAffinityFilter passes the hosts of the group of the hint."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.group_affinity_filter import (
    GroupAffinityFilter,
)
from tests.support.plugins import (
    GROUP,
    has_opinion,
    instance,
    inventory,
    passing,
    reason,
    server_group,
    uuid,
)

HOSTS = inventory(
    a={},
    b={},
    c={},
    instances=(instance(1, 'a'), instance(2, 'b'), instance(3, 'c')),
    groups=(server_group('anti-affinity', 1, 2, name='web'),),
)


def hint(value):
    return {'scheduler_hints': {'group': value}}


@pytest.mark.parametrize('name', ['web', GROUP])
def test_hosts_with_a_member_pass_whatever_the_policy(name):
    assert passing(GroupAffinityFilter(), HOSTS, hint(name)) == ['a', 'b']


def test_members_of_all_groups_with_the_name_count():
    other = {
        'uuid': '22222222-0000-4000-8000-000000000002',
        'name': 'web',
        'members': [uuid(3)],
    }
    document = {**HOSTS, 'server_groups': [*HOSTS['server_groups'], other]}
    request = hint('web')
    hosts = passing(GroupAffinityFilter(), document, request)
    assert hosts == ['a', 'b', 'c']


@pytest.mark.parametrize('value', [None, 'nobody', ['web', 'db']])
def test_it_has_no_opinion_without_a_known_group(value):
    assert not has_opinion(GroupAffinityFilter(), HOSTS, hint(value))


def test_every_host_passes_before_any_member_is_placed():
    document = inventory(
        a={}, b={}, groups=(server_group('affinity', 8, 9, name='web'),)
    )
    hosts = passing(GroupAffinityFilter(), document, hint('web'))
    assert hosts == ['a', 'b']


def test_the_reason_names_the_group():
    assert reason(GroupAffinityFilter(), HOSTS, hint('web'), host='c') == (
        'no member of the group web is on this host'
    )
