"""ServerGroupAntiAffinityFilter keeps the members of a group apart."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.server_group_anti_affinity_filter import (
    ServerGroupAntiAffinityFilter,
)
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table
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

REQUEST = {'instance_group': GROUP}


def hosts_with(*groups):
    """Return hosts with three, one and no instance."""
    return inventory(
        a={},
        b={},
        c={},
        instances=(
            instance(1, 'a'),
            instance(2, 'a'),
            instance(3, 'a'),
            instance(4, 'b'),
        ),
        groups=groups,
    )


@pytest.mark.parametrize(
    ('members', 'most', 'expected'),
    [
        ((1, 4), 1, ['c']),
        ((1,), 1, ['b', 'c']),
        ((), 1, ['a', 'b', 'c']),
        # Instances are counted, not hosts: with up to 3, a has room for
        # one more beside two members.
        ((1, 2, 4), 3, ['a', 'b', 'c']),
        ((1, 2, 3, 4), 3, ['b', 'c']),
    ],
)
def test_hosts_with_the_most_members_allowed_fail(members, most, expected):
    document = hosts_with(
        server_group(
            'anti-affinity', *members, rules={'max_server_per_host': most}
        )
    )
    hosts = passing(ServerGroupAntiAffinityFilter(), document, REQUEST)
    assert hosts == expected


def test_one_member_a_host_is_allowed_without_the_rule():
    document = hosts_with(server_group('anti-affinity', 4))
    hosts = passing(ServerGroupAntiAffinityFilter(), document, REQUEST)
    assert hosts == ['a', 'c']


def test_a_host_that_has_the_instance_itself_passes():
    document = hosts_with(server_group('anti-affinity', 1, 4))
    request = {**REQUEST, 'instance_uuids': [uuid(1)]}
    hosts = passing(ServerGroupAntiAffinityFilter(), document, request)
    assert hosts == ['a', 'c']


@pytest.mark.parametrize(
    'policy', ['affinity', 'soft-affinity', 'soft-anti-affinity']
)
def test_it_has_no_opinion_on_other_policies(policy):
    document = hosts_with(server_group(policy, 1))
    assert not has_opinion(ServerGroupAntiAffinityFilter(), document, REQUEST)


def test_it_has_no_opinion_without_a_group():
    document = hosts_with(server_group('anti-affinity', 1))
    assert not has_opinion(ServerGroupAntiAffinityFilter(), document)


def test_the_reason_gives_the_number_and_the_most_allowed():
    document = hosts_with(server_group('anti-affinity', 1, 2))
    assert reason(ServerGroupAntiAffinityFilter(), document, REQUEST) == (
        'members of the server group on this host: 2, at most 1 allowed'
    )


def test_a_member_that_moves_counts_on_both_its_hosts():
    hosts = table(hosts_with(server_group('anti-affinity', 4)))
    placed = hosts.instances.get(uuid(4))
    hosts.instances.put(uuid(4), placed._replace(bound_for='c'))
    request = documents.request(REQUEST).with_ids()
    row_set = ServerGroupAntiAffinityFilter().row_set(
        hosts, request, Settings()
    )
    assert sorted(hosts.host_at(row) for row in row_set.rows) == ['b', 'c']


@pytest.mark.parametrize(('most', 'expected'), [(1, ['b']), (2, ['b', 'c'])])
def test_a_host_that_the_request_names_has_one_member(most, expected):
    group = server_group(
        'anti-affinity', 1, 2, rules={'max_server_per_host': most}
    )
    document = hosts_with(group)
    request = {**REQUEST, 'group_hosts': ['a', 'c']}
    filter_ = ServerGroupAntiAffinityFilter()
    assert passing(filter_, document, request) == expected
