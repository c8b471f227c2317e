"""Groups of resources in a request."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.engine.ports import EmbeddedClaimer
from scheduler_service.model import documents


def request(**fields):
    return documents.request({'flavor': {'vcpus': 2}, **fields})


def test_resources_of_groups_count_for_the_host():
    made = request(
        resource_groups=[
            {'suffix': '1', 'resources': {'VGPU': 1, 'VCPU': 1}},
            {'suffix': '2', 'resources': {'VGPU': 2}},
        ]
    )
    assert made.own_resources == {'VCPU': 2}
    assert made.resources == {'VCPU': 3, 'VGPU': 3}


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        (
            {'resource_groups': [{'suffix': '1'}, {'suffix': '1'}]},
            'different suffixes',
        ),
        ({'same_subtree': [['1']]}, 'no group 1'),
        ({'resource_groups': [{'suffix': 'a b'}]}, 'suffix'),
        (
            {'resource_groups': [{'suffix': '1', 'resources': {'X': -1}}]},
            'resources',
        ),
        ({'group_policy': 'x'}, 'group_policy'),
    ],
)
def test_groups_that_say_nothing_sensible_are_refused(fields, words):
    with pytest.raises(errors.InvalidRequest, match=words):
        request(**fields)


def test_claims_without_the_placement_service_have_no_groups():
    claimer = EmbeddedClaimer()
    claimer.check(request())
    with pytest.raises(errors.InvalidRequest, match='group port-1'):
        claimer.check(request(resource_groups=[{'suffix': 'port-1'}]))
