"""ServerGroupAffinityFilter keeps the members of a group together."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.server_group_affinity_filter import (
    ServerGroupAffinityFilter,
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

REQUEST = {'instance_group': GROUP}


def hosts_with(*groups):
    return inventory(
        a={},
        b={'state': 'down'},
        c={},
        instances=(instance(1, 'a'), instance(2, 'b'), instance(3, 'c')),
        groups=groups,
    )


@pytest.mark.parametrize(
    ('members', 'expected'),
    [
        ((1,), ['a']),
        ((1, 2), ['a', 'b']),
        # A host that is down is still the host of its members.
        ((2,), ['b']),
        # The first member may go anywhere.
        ((), ['a', 'b', 'c']),
        ((9,), ['a', 'b', 'c']),
    ],
)
def test_hosts_with_a_member_pass(members, expected):
    document = hosts_with(server_group('affinity', *members))
    hosts = passing(ServerGroupAffinityFilter(), document, REQUEST)
    assert hosts == expected


@pytest.mark.parametrize(
    'policy', ['anti-affinity', 'soft-affinity', 'soft-anti-affinity']
)
def test_it_has_no_opinion_on_other_policies(policy):
    document = hosts_with(server_group(policy, 1))
    assert not has_opinion(ServerGroupAffinityFilter(), document, REQUEST)


def test_it_has_no_opinion_without_a_group():
    document = hosts_with(server_group('affinity', 1))
    assert not has_opinion(ServerGroupAffinityFilter(), document)
    assert not has_opinion(ServerGroupAffinityFilter(), hosts_with(), REQUEST)


def test_the_reason_names_the_hosts_of_the_members():
    document = hosts_with(server_group('affinity', 2, 3))
    assert reason(ServerGroupAffinityFilter(), document, REQUEST) == (
        'the members of the server group are on b, c, not on this host'
    )


def test_a_host_that_the_request_names_has_a_member():
    document = hosts_with(server_group('affinity'))
    request = {**REQUEST, 'group_hosts': ['c']}
    hosts = passing(ServerGroupAffinityFilter(), document, request)
    assert hosts == ['c']
