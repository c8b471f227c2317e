"""GroupAntiAffinityFilter rejects the hosts of the group of the hint."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.group_anti_affinity_filter import (
    GroupAntiAffinityFilter,
)
from tests.support.plugins import (
    GROUP,
    has_opinion,
    instance,
    inventory,
    passing,
    reason,
    server_group,
)

HOSTS = inventory(
    a={},
    b={},
    c={},
    instances=(instance(1, 'a'), instance(2, 'b'), instance(3, 'c')),
    groups=(server_group('affinity', 1, 2, name='web'),),
)


def hint(value):
    return {'scheduler_hints': {'group': value}}


@pytest.mark.parametrize('name', ['web', GROUP])
def test_hosts_with_a_member_fail_whatever_the_policy(name):
    assert passing(GroupAntiAffinityFilter(), HOSTS, hint(name)) == ['c']


@pytest.mark.parametrize('value', [None, 'nobody'])
def test_it_has_no_opinion_without_a_known_group(value):
    assert not has_opinion(GroupAntiAffinityFilter(), HOSTS, hint(value))


def test_the_reason_names_the_group():
    assert reason(GroupAntiAffinityFilter(), HOSTS, hint('web')) == (
        'a member of the group web is on this host'
    )
