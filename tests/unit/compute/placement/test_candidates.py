"""What the placement service is asked for a request."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.compute.placement import candidates
from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.model import Placement, Selection, documents
from scheduler_service.pipeline import Assignment
from scheduler_service.request_filters import Scope

ROOT = '11111111-0000-4000-8000-000000000001'


def asked(**fields):
    """Return the pairs of the query for a request, of one host."""
    request = documents.request({'flavor': {'vcpus': 2}, **fields})
    return parse_qsl(candidates.query_of(request, ROOT, 1))


def test_what_is_in_no_group_is_asked_of_the_host_itself():
    assert asked(amounts={'VGPU': 1, 'VCPU': 2}) == [
        ('limit', '1'),
        ('resources', 'VCPU:2,VGPU:1'),
        ('in_tree', ROOT),
    ]


def test_a_group_is_asked_for_with_its_suffix():
    group = {
        'suffix': 'a-1',
        'resources': {'VGPU': 1},
        'required': ['CUSTOM_A'],
        'forbidden': ['CUSTOM_B'],
        'aggregates': ['u1,u2', 'u3'],
        'forbidden_aggregates': ['u4', 'u5'],
    }
    assert asked(resource_groups=[group])[3:] == [
        ('resourcesa-1', 'VGPU:1'),
        ('requireda-1', 'CUSTOM_A,!CUSTOM_B'),
        ('member_ofa-1', 'in:u1,u2'),
        ('member_ofa-1', 'in:u3'),
        ('member_ofa-1', '!in:u4,u5'),
        ('in_treea-1', ROOT),
    ]


def test_a_provider_below_may_have_traits_that_are_in_no_group():
    fields = {
        'amounts': {'VGPU': 1},
        'traits': {'CUSTOM_A': 'required', 'CUSTOM_B': 'forbidden'},
        'root_traits': {'CUSTOM_C': 'required'},
    }
    assert ('required', 'CUSTOM_A,!CUSTOM_B') in asked(**fields)
    # The host itself has what only it can give.
    fields['amounts'] = {'VCPU': 1}
    group = {'suffix': '1', 'resources': {'VGPU': 1}}
    names = [name for name, _ in asked(**fields, resource_groups=[group])]
    assert 'required' not in names


def test_groups_alone_are_asked_in_the_tree_of_the_host():
    groups = [
        {'suffix': '1', 'resources': {'VGPU': 1}},
        {'suffix': '2', 'resources': {'VGPU': 1}, 'in_tree': 'other'},
    ]
    found = asked(
        amounts={}, resource_groups=groups, same_subtree=[['1', '2']]
    )
    assert found == [
        ('limit', '1'),
        ('resources1', 'VGPU:1'),
        ('in_tree1', ROOT),
        ('resources2', 'VGPU:1'),
        ('in_tree2', 'other'),
        ('group_policy', 'none'),
        ('same_subtree', '1,2'),
    ]
    found = asked(resource_groups=groups, group_policy='isolate')
    assert ('group_policy', 'isolate') in found


@pytest.mark.parametrize(
    ('fields', 'needed'),
    [
        ({}, False),
        ({'amounts': {'PCPU': 2, 'MEMORY_MB': 1, 'DISK_GB': 1}}, False),
        ({'amounts': {'VCPU': 2, 'CUSTOM_X': 1}}, True),
        ({'resource_groups': [{'suffix': '1'}]}, False),
        (
            {'resource_groups': [{'suffix': '1', 'required': ['CUSTOM_A']}]},
            True,
        ),
    ],
)
def test_the_service_is_asked_only_where_it_knows_more(fields, needed):
    request = documents.request({'flavor': {'vcpus': 2}, **fields})
    assert candidates.is_needed(request) is needed


def test_all_hosts_are_asked_about_with_the_traits_of_hosts():
    request = documents.request(
        {
            'flavor': {},
            'amounts': {'VGPU': 1},
            'traits': {'CUSTOM_A': 'required'},
            'root_traits': {'CUSTOM_B': 'required'},
            'resource_groups': [
                {'suffix': '1', 'resources': {'CUSTOM_X': 1}},
                {'suffix': '2', 'resources': {'CUSTOM_X': 1}},
            ],
            'same_subtree': [['1', '2']],
        }
    )
    scope = Scope(forbidden_traits={'COMPUTE_STATUS_DISABLED'})
    assert parse_qsl(candidates.query_of(request, scope=scope)) == [
        ('resources', 'VGPU:1'),
        ('required', 'CUSTOM_A'),
        ('resources1', 'CUSTOM_X:1'),
        ('resources2', 'CUSTOM_X:1'),
        ('group_policy', 'none'),
        ('root_required', 'CUSTOM_B,!COMPUTE_STATUS_DISABLED'),
        ('same_subtree', '1,2'),
    ]
    assert parse_qsl(candidates.query_of(request, without='2')) == [
        ('resources', 'VGPU:1'),
        ('required', 'CUSTOM_A'),
        ('resources1', 'CUSTOM_X:1'),
    ]
    assert candidates.described(request, '') == (
        'what is in no group (VGPU:1 CUSTOM_A)'
    )
    assert candidates.described(request, '2') == 'group 2 (CUSTOM_X:1)'


def tree(child):
    return Tree({ROOT: {'VCPU': 1}, child: {'VGPU': 1}}, {'': [ROOT, child]})


def assignment(uuid):
    selected = Selection(host='h', node='h', uuid=ROOT)
    return Assignment(
        uuid=uuid,
        row=0,
        host_id=7,
        amounts={},
        ratios={},
        placement=Placement(
            instance_uuid=uuid, selected=selected, alternates=[selected]
        ),
        placed=PlacedInstance(uuid, 'h', 'h'),
    )


def found(free):
    """Return the candidates of a host with two providers below it."""
    made = candidates.Candidates(3)
    made.add(ROOT, 7, [tree('c1'), tree('c2')])
    summaries = {
        ROOT: {'resources': {'VCPU': {'capacity': 8, 'used': 0}}},
        **{
            child: {'resources': {'VGPU': {'capacity': amount, 'used': 1}}}
            for child, amount in free.items()
        },
    }
    made.add_free(summaries)
    return made


def test_each_instance_gets_a_candidate_with_room_beside_the_others():
    made = found({'c1': 2, 'c2': 2})
    assignments = [assignment('a'), assignment('b')]
    assert made.assign(assignments)
    given = [
        {*one.placement.selected.allocation['allocations']} - {ROOT}
        for one in assignments
    ]
    assert sorted(map(sorted, given)) == [['c1'], ['c2']]
    # The alternate is the same host, which has no room left.
    assert all(not one.placement.alternates for one in assignments)
    third = [*assignments, assignment('c')]
    assert not made.assign(third)
    assert [list(bound) for bound in made.bounds] == [[7], [7], []]


def test_the_next_candidate_of_a_host_is_another_one():
    made = found({'c1': 2, 'c2': 1})
    assert made.drop(ROOT, tree('c1')) == tree('c2')
    assert made.drop(ROOT, tree('c2')) is None
    assert not made.assign([assignment('a')])
