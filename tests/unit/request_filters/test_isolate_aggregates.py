"""isolate_aggregates forbids aggregates that are reserved by traits."""

import pytest

from scheduler_service.request_filters import isolate_aggregates
from tests.support.plugins import scope_of

UUID = '44444444-0000-4000-8000-000000000001'
ON = {'enable_isolated_aggregate_filtering': True}


def is_forbidden(metadata, request):
    aggregate = {'uuid': UUID, 'metadata': metadata}
    scope = scope_of(isolate_aggregates, request, aggregate, **ON)
    return scope.forbidden_aggregates == {UUID}


def flavor(*traits):
    specs = {f'trait:{trait}': 'required' for trait in traits}
    return {'flavor': {'extra_specs': specs}}


A_AND_B = {'trait:A': 'required', 'trait:B': 'required'}


@pytest.mark.parametrize(
    ('metadata', 'forbidden_for'),
    [
        ({}, []),
        ({'other': 'required'}, []),
        ({'trait:A': 'forbidden'}, []),
        ({'trait1:A': 'required'}, []),
        ({'trait:A': 'required'}, [(), ('B',)]),
        # All of several traits have to be required.
        (A_AND_B, [(), ('A',), ('B',), ('A', 'Z')]),
        (
            {'trait:A': 'required', 'trait:C': 'forbidden'},
            [(), ('B',)],
        ),
        # Nobody can require the trait without a name.
        (
            {'trait:': 'required'},
            [(), ('A',), ('B',), ('A', 'B'), ('A', 'Z')],
        ),
    ],
)
def test_an_aggregate_is_open_to_those_who_require_its_traits(
    metadata, forbidden_for
):
    traits = [(), ('A',), ('B',), ('A', 'B'), ('A', 'Z')]
    found = [t for t in traits if is_forbidden(metadata, flavor(*t))]
    assert found == forbidden_for


@pytest.mark.parametrize(
    ('request_', 'forbidden'),
    [
        ({'flavor': {'extra_specs': {'trait1:A': 'required'}}}, False),
        ({'flavor': {'extra_specs': {'traitx:A': 'required'}}}, True),
        ({'flavor': {'extra_specs': {'trait:A': 'preferred'}}}, True),
        ({'flavor': {'extra_specs': {'trait:A': 'Required'}}}, True),
        ({'image': {'properties': {'trait:A': 'required'}}}, False),
        ({'image': {'properties': {'trait1:A': 'required'}}}, True),
    ],
)
def test_the_flavor_or_the_image_may_require_the_trait(request_, forbidden):
    assert is_forbidden({'trait:A': 'required'}, request_) is forbidden


def test_flavor_and_image_together_may_require_all_traits():
    request = {**flavor('A'), 'image': {'properties': {'trait:B': 'required'}}}
    assert not is_forbidden(A_AND_B, request)
