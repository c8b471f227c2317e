"""Filters by server groups, and by the instances that hints name."""

import numpy as np
import pytest

from scheduler_service.filters.hosts.affinity_filter import (
    DifferentHostFilter,
    GroupAffinityFilter,
    GroupAntiAffinityFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
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
HINTS = pytest.mark.parametrize(
    ('host_filter', 'hint'),
    [
        (DifferentHostFilter(), 'different_host'),
        (SameHostFilter(), 'same_host'),
    ],
)
BY_GROUP = pytest.mark.parametrize(
    'host_filter', [GroupAffinityFilter(), GroupAntiAffinityFilter()]
)
BY_POLICY = pytest.mark.parametrize(
    'host_filter',
    [ServerGroupAffinityFilter(), ServerGroupAntiAffinityFilter()],
)


def hosts_with(*groups, instances=('a', 'b', 'c')):
    """Return three hosts, instances 1, 2 ... on hosts, and groups."""
    return inventory(
        a={},
        b={'state': 'down'},
        c={},
        instances=tuple(
            instance(number, host)
            for number, host in enumerate(instances, start=1)
        ),
        groups=groups,
    )


def hint(value, name='group'):
    return {'scheduler_hints': {name: value}}


@pytest.mark.parametrize(
    ('value', 'same'),
    [
        (uuid(1), ['a']),
        ([uuid(1)], ['a']),
        # Any of the named instances suffices.
        ([uuid(1), uuid(2)], ['a', 'b']),
        # An instance that is not known is on no host.
        ([uuid(1), uuid(9)], ['a']),
        ([uuid(9)], []),
    ],
)
def test_hosts_with_a_named_instance_pass_or_fail(value, same):
    document = hosts_with(instances=('a', 'b'))
    request = hint(value, 'same_host')
    assert passing(SameHostFilter(), document, request) == same
    request = hint(value, 'different_host')
    different = [name for name in 'abc' if name not in same]
    assert passing(DifferentHostFilter(), document, request) == different


@HINTS
@pytest.mark.parametrize('value', [None, [], '', ['']])
def test_there_is_no_opinion_without_the_hint(host_filter, hint, value):
    request = {'scheduler_hints': {hint: value}}
    assert not has_opinion(host_filter, hosts_with(), request)


def test_all_nodes_of_a_service_host_fail():
    document = {
        'hosts': [
            {'host': 'a', 'hypervisor_hostname': 'a-1'},
            {'host': 'a', 'hypervisor_hostname': 'a-2'},
        ],
        'instances': [instance(1, 'a', hypervisor_hostname='a-1')],
    }
    request = hint(uuid(1), 'different_host')
    assert passing(DifferentHostFilter(), document, request) == []


@pytest.mark.parametrize(
    ('host_filter', 'request_', 'sentence'),
    [
        (
            DifferentHostFilter(),
            hint(uuid(1), 'different_host'),
            'an instance named by the hint different_host is on this host',
        ),
        (
            SameHostFilter(),
            hint(uuid(2), 'same_host'),
            'no instance named by the hint same_host is on this host',
        ),
        (
            GroupAffinityFilter(),
            hint('other'),
            'no member of the group other is on this host',
        ),
        (
            GroupAntiAffinityFilter(),
            hint('web'),
            'a member of the group web is on this host',
        ),
    ],
)
def test_the_reason_names_the_hint(host_filter, request_, sentence):
    other = {'uuid': uuid(0), 'name': 'other', 'members': [uuid(3)]}
    document = hosts_with(server_group('affinity', 1, 2, name='web'), other)
    assert reason(host_filter, document, request_) == sentence


@pytest.mark.parametrize('name', ['web', GROUP])
@pytest.mark.parametrize('policy', ['affinity', 'anti-affinity'])
def test_hosts_of_the_hinted_group_count_whatever_the_policy(name, policy):
    document = hosts_with(server_group(policy, 1, 2, name='web'))
    request = hint(name)
    assert passing(GroupAffinityFilter(), document, request) == ['a', 'b']
    assert passing(GroupAntiAffinityFilter(), document, request) == ['c']


def test_members_of_all_groups_with_the_name_count():
    other = {'uuid': uuid(0), 'name': 'web', 'members': [uuid(3)]}
    document = hosts_with(server_group('affinity', 1, name='web'), other)
    request = hint('web')
    assert passing(GroupAffinityFilter(), document, request) == ['a', 'c']
    assert passing(GroupAntiAffinityFilter(), document, request) == ['b']


@BY_GROUP
@pytest.mark.parametrize('value', [None, 'nobody', ['web', 'db']])
def test_there_is_no_opinion_without_a_known_group(host_filter, value):
    document = hosts_with(server_group('affinity', 1, 2, name='web'))
    assert not has_opinion(host_filter, document, hint(value))


@BY_GROUP
def test_every_host_passes_before_any_member_is_placed(host_filter):
    document = hosts_with(server_group('affinity', 8, 9, name='web'))
    hosts = passing(host_filter, document, hint('web'))
    assert hosts == ['a', 'b', 'c']


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


def test_a_host_that_the_request_names_has_a_member():
    document = hosts_with(server_group('affinity'))
    request = {**REQUEST, 'group_hosts': ['c']}
    hosts = passing(ServerGroupAffinityFilter(), document, request)
    assert hosts == ['c']


@pytest.mark.parametrize('named', [None, GROUP])
@pytest.mark.parametrize(
    ('host_filter', 'expected', 'sentence'),
    [
        (
            ServerGroupAffinityFilter(),
            ['b'],
            'the members of the server group are on b, c, not on this host',
        ),
        (
            ServerGroupAntiAffinityFilter(),
            [],
            'members of the server group on this host: 1, at most 1 allowed',
        ),
    ],
)
def test_all_groups_of_the_placed_instance_count(
    host_filter, expected, sentence, named
):
    policy = host_filter.policy
    other = {**server_group(policy, 2, 3), 'uuid': uuid(0)}
    hosts = table(hosts_with(server_group(policy, 1, 2), other))
    request = documents.request(
        {'instance_group': named, 'instance_uuids': [uuid(8), uuid(9)]}
    )
    request.stored_groups = {uuid(8): [GROUP, uuid(0)]}
    request = request.having(ignore_hosts=['x'])
    assert request.shape is None
    mask = host_filter.mask(hosts, request, Settings())
    passed = [hosts.host_at(row) for row in np.flatnonzero(mask)]
    assert passed == expected
    assert host_filter.reason(hosts, 0, request, Settings()) == sentence
    request.placing = uuid(9)
    assert (host_filter.mask(hosts, request, Settings()) is None) != bool(
        named
    )


@BY_POLICY
def test_there_is_no_opinion_on_other_policies(host_filter):
    for policy in (
        'affinity',
        'anti-affinity',
        'soft-affinity',
        'soft-anti-affinity',
    ):
        document = hosts_with(server_group(policy, 1))
        applies = policy == host_filter.policy
        assert has_opinion(host_filter, document, REQUEST) is applies


@BY_POLICY
def test_there_is_no_opinion_without_a_group(host_filter):
    document = hosts_with(server_group(host_filter.policy, 1))
    assert not has_opinion(host_filter, document)
    assert not has_opinion(host_filter, hosts_with(), REQUEST)


@pytest.mark.parametrize(
    ('host_filter', 'members', 'sentence'),
    [
        (
            ServerGroupAffinityFilter(),
            (2, 3),
            'the members of the server group are on b, c, not on this host',
        ),
        (
            ServerGroupAntiAffinityFilter(),
            (1, 4),
            'members of the server group on this host: 2, at most 1 allowed',
        ),
    ],
)
def test_the_reason_gives_the_members(host_filter, members, sentence):
    group = server_group(host_filter.policy, *members)
    document = hosts_with(group, instances=('a', 'b', 'c', 'a'))
    assert reason(host_filter, document, REQUEST) == sentence


# Hosts with three, one and no instance.
THREE_ON_A = ('a', 'a', 'a', 'b')


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
        # One member a host is allowed without the rule.
        ((4,), None, ['a', 'c']),
    ],
)
def test_hosts_with_the_most_members_allowed_fail(members, most, expected):
    rules = {'rules': {'max_server_per_host': most}} if most else {}
    group = server_group('anti-affinity', *members, **rules)
    document = hosts_with(group, instances=THREE_ON_A)
    hosts = passing(ServerGroupAntiAffinityFilter(), document, REQUEST)
    assert hosts == expected


def test_a_host_that_has_the_instance_itself_passes():
    group = server_group('anti-affinity', 1, 4)
    document = hosts_with(group, instances=THREE_ON_A)
    request = {**REQUEST, 'instance_uuids': [uuid(1)]}
    hosts = passing(ServerGroupAntiAffinityFilter(), document, request)
    assert hosts == ['a', 'c']


def test_a_member_that_moves_counts_on_both_its_hosts():
    group = server_group('anti-affinity', 4)
    hosts = table(hosts_with(group, instances=THREE_ON_A))
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
    document = hosts_with(group, instances=THREE_ON_A)
    request = {**REQUEST, 'group_hosts': ['a', 'c']}
    filter_ = ServerGroupAntiAffinityFilter()
    assert passing(filter_, document, request) == expected


@pytest.mark.parametrize(
    ('members', 'lenient', 'hosts'),
    [
        ((1,), False, ['a', 'b', 'c']),
        ((1,), True, ['a']),
        ((1, 2), False, ['b']),
        ((1, 2), True, ['a', 'b']),
        ((2,), False, ['b']),
    ],
)
def test_an_instance_that_moves_is_not_bound_by_itself(
    members, lenient, hosts
):
    document = hosts_with(
        server_group('affinity', *members), instances=('a', 'b')
    )
    request = {**REQUEST, 'instance_uuids': [uuid(1)], 'lenient': lenient}
    assert passing(ServerGroupAffinityFilter(), document, request) == hosts
