"""What the placement service is asked for a request."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from scheduler_service.compute.placement import candidates
from scheduler_service.model import documents

ROOT = '11111111-0000-4000-8000-000000000001'


class Recorded:
    """A client that keeps the query, and finds nothing."""

    query = ''

    def allocation_candidates(self, query):
        self.query = query
        return []


def asked(shared=(), **fields):
    """Return the pairs of the query for a request."""
    client = Recorded()
    request = documents.request({'flavor': {'vcpus': 2}, **fields})
    assert candidates.find(client, request, ROOT, shared) is None
    return parse_qsl(client.query)


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
        ({'resource_groups': [{'suffix': '1'}]}, True),
    ],
)
def test_the_service_is_asked_only_where_it_knows_more(fields, needed):
    request = documents.request({'flavor': {'vcpus': 2}, **fields})
    assert candidates.is_needed(request) is needed


def test_what_another_provider_shares_is_not_asked_of_the_host():
    assert asked({'DISK_GB': 'pool'}, amounts={'VGPU': 1, 'DISK_GB': 2}) == [
        ('limit', '1'),
        ('resources', 'VGPU:1'),
        ('in_tree', ROOT),
    ]


def test_what_another_provider_shares_is_added_to_what_is_found():
    class Answering:
        def allocation_candidates(self, query):
            amounts = {ROOT: {'resources': {'VGPU': 1}}}
            return [{'allocations': amounts, 'mappings': {'': [ROOT]}}]

    request = documents.request(
        {
            'flavor': {},
            'amounts': {'VGPU': 1, 'DISK_GB': 2, 'MEMORY_MB': 3},
        }
    )
    shared = {'DISK_GB': 'pool', 'MEMORY_MB': 'pool', 'VCPU': 'other'}
    found = candidates.find(Answering(), request, ROOT, shared)
    assert found.allocations == {
        ROOT: {'VGPU': 1}, 'pool': {'DISK_GB': 2, 'MEMORY_MB': 3},
    }  # fmt: skip
    assert found.mappings == {'': [ROOT, 'pool']}
