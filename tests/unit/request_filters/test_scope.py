"""What request filters add, and how it narrows hosts."""

from __future__ import annotations

import random

import pytest

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.model import documents
from scheduler_service.model.inventory import AggregateMap
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.selection import explanation
from scheduler_service.request_filters import BUILT_IN, Scope, scope_of
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support import plugins

LICENSED = 'aaaaaaaa-0000-4000-8000-000000000001'
WORLD = {
    'hosts': [{'host': 'licensed'}, {'host': 'plain'}],
    'aggregates': [
        {'id': 1, 'uuid': LICENSED, 'hosts': ['licensed'],
         'metadata': {'trait:CUSTOM_WINDOWS_LICENSED': 'required'}},
        {'id': 2, 'hosts': ['plain'], 'metadata': {'filter_tenant_id': 'p'}},
    ],
}  # fmt: skip


def choose(settings, **request):
    overlay = Overlay(table(WORLD))
    asked = documents.request(request).with_ids()
    chain = HostPipeline([], [], settings)
    return chain.select(overlay, asked, random.Random(1)), overlay


def test_query_is_in_the_syntax_of_a_placement_query():
    scope = Scope(
        required_aggregates=[frozenset('ba'), frozenset('c')],
        forbidden_aggregates={'f2', 'f1'},
        required_traits={'T'},
        forbidden_traits={'U'},
    )
    assert scope.query() == (
        'member_of=in:a,b&member_of=in:c&member_of=!in:f1,f2&required=T,!U'
    )


def test_query_for_people_names_a_few_and_counts_the_others():
    scope = Scope(
        required_aggregates=[frozenset('ba'), frozenset('c'), frozenset('d')],
        forbidden_aggregates={'f3', 'f2', 'f1'},
        required_traits={'T', 'U', 'V'},
    )
    assert scope.query(2) == (
        'member_of=in:a,b&member_of=in:c&... (1 more)'
        '&member_of=!in:f1,f2,... (1 more)&required=T,U,... (1 more)'
    )


def test_isolated_aggregates_are_left_out_of_the_candidates():
    settings = Settings(enable_isolated_aggregate_filtering=True)
    choice, _ = choose(settings)
    assert [
        assignment.placement.selected.host for assignment in choice.assignments
    ] == ['plain']
    told = explanation(choice.reasons)
    assert told['query'].startswith(f'member_of=!in:{LICENSED}&')
    counts = {step['filter']: step for step in told['funnel']}
    assert (counts['aggregates']['start'], counts['aggregates']['end']) == (
        2, 1,
    )  # fmt: skip


def test_a_tenant_without_an_aggregate_is_refused_where_one_is_needed():
    settings = Settings(
        limit_tenants_to_placement_aggregate=True,
        placement_aggregate_required_for_tenants=True,
    )
    choice, _ = choose(settings, project_id='p')
    assert choice.assignments[0].placement.selected.host == 'plain'
    with pytest.raises(errors.RequestFilterFailed, match='tenant'):
        choose(settings, project_id='q')


def test_hosts_marked_disabled_are_left_out():
    world = {'hosts': [{'host': 'a', 'traits': ['COMPUTE_STATUS_DISABLED']}]}
    overlay = Overlay(table(world))
    request = documents.request({}).with_ids()
    with pytest.raises(errors.NoValidHost, match='COMPUTE_STATUS_DISABLED'):
        HostPipeline([], [], Settings()).select(
            overlay, request, random.Random(1)
        )


@pytest.mark.parametrize(
    'name',
    [
        'isolate_aggregates',
        'map_az_to_placement_aggregate',
        'require_image_type_support',
        'require_tenant_aggregate',
        'transform_image_metadata',
    ],
)
def test_a_filter_does_nothing_unless_it_is_switched_on(name):
    (each,) = (one for one in BUILT_IN if one.__name__ == name)
    metadata = {
        'trait:A': 'required',
        'availability_zone': 'z',
        'filter_tenant_id': 'p',
    }
    aggregate = {'uuid': LICENSED, 'metadata': metadata}
    image = {'disk_format': 'raw', 'properties': {'hw_disk_bus': 'virtio'}}
    request = {'project_id': 'p', 'availability_zone': 'z', 'image': image}
    switches = {
        'enable_isolated_aggregate_filtering': True,
        'query_placement_for_availability_zone': True,
        'query_placement_for_image_type_support': True,
        'limit_tenants_to_placement_aggregate': True,
        'image_metadata_prefilter': True,
    }
    assert plugins.scope_of(each, request, aggregate, **switches)
    assert not plugins.scope_of(each, request, aggregate)


def test_nothing_is_added_on_a_rebuild():
    hints = {'_nova_check_type': ['rebuild']}
    request = documents.request({'scheduler_hints': hints})
    assert not scope_of(request, AggregateMap(), Settings())


@pytest.mark.parametrize(
    ('wanted', 'expected'),
    [
        ({'aggregates': [LICENSED]}, 'licensed'),
        ({'aggregates': [f'{"0" * 8},{LICENSED}']}, 'licensed'),
        ({'forbidden_aggregates': [LICENSED]}, 'plain'),
    ],
)
def test_a_destination_may_be_aggregates(wanted, expected):
    choice, _ = choose(Settings(), requested_destination=wanted)
    assert choice.assignments[0].placement.selected.host == expected


def test_each_entry_of_required_aggregates_has_to_hold():
    wanted = {'aggregates': [LICENSED, '0' * 8]}
    with pytest.raises(errors.NoValidHost):
        choose(Settings(), requested_destination=wanted)
