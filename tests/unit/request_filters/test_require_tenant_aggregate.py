"""require_tenant_aggregate keeps projects on their own aggregates."""

import pytest

from scheduler_service import errors
from scheduler_service.request_filters import require_tenant_aggregate
from tests.support.plugins import scope_of

UUIDS = [f'44444444-0000-4000-8000-00000000000{n}' for n in range(3)]
ON = {'limit_tenants_to_placement_aggregate': True}
REQUIRED = {**ON, 'placement_aggregate_required_for_tenants': True}
REQUEST = {'project_id': 'p'}


def aggregates(*metadata):
    return [
        {'uuid': uuid, 'metadata': pairs}
        for uuid, pairs in zip(UUIDS, metadata, strict=False)
    ]


@pytest.mark.parametrize(
    ('metadata', 'matches'),
    [
        ({'filter_tenant_id': 'p'}, True),
        ({'filter_tenant_id2': 'p'}, True),
        ({'filter_tenant_id': 'q'}, False),
        # The whole value counts: lists with commas are not split here.
        ({'filter_tenant_id': 'p,q'}, False),
        # Key and value belong to one entry.
        ({'filter_tenant_id': 'q', 'owner': 'p'}, False),
        ({'owner': 'p'}, False),
    ],
)
def test_aggregates_of_the_project_are_required(metadata, matches):
    scope = scope_of(
        require_tenant_aggregate, REQUEST, *aggregates(metadata), **ON
    )
    expected = [frozenset([UUIDS[0]])] if matches else []
    assert scope.required_aggregates == expected


def test_any_of_several_aggregates_will_do():
    own = {'filter_tenant_id': 'p'}
    scope = scope_of(
        require_tenant_aggregate, REQUEST, *aggregates(own, {}, own), **ON
    )
    assert scope.required_aggregates == [frozenset([UUIDS[0], UUIDS[2]])]


def test_a_project_without_an_aggregate_may_be_refused():
    with pytest.raises(errors.RequestFilterFailed, match='tenant') as caught:
        scope_of(require_tenant_aggregate, REQUEST, **REQUIRED)
    assert caught.value.facts == {
        'project_id': 'p',
        'filter': 'require_tenant_aggregate',
    }
