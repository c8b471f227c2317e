"""map_az_to_placement_aggregate requires aggregates of the zone."""

import pytest

from scheduler_service.request_filters import map_az_to_placement_aggregate
from tests.support.plugins import scope_of

UUIDS = [f'44444444-0000-4000-8000-00000000000{n}' for n in range(3)]
AGGREGATES = [
    {'uuid': UUIDS[0], 'metadata': {'availability_zone': 'z1'}},
    {'uuid': UUIDS[1], 'metadata': {'availability_zone': 'z1'}},
    {'uuid': UUIDS[2], 'metadata': {'availability_zone': 'z2,z3'}},
]
ON = {'query_placement_for_availability_zone': True}


@pytest.mark.parametrize(
    ('zone', 'expected'),
    [
        ('z1', [frozenset(UUIDS[:2])]),
        # The whole value counts: lists with commas are not split here.
        ('z2', []),
        ('z2,z3', [frozenset(UUIDS[2:])]),
        # A zone that no aggregate has restricts nothing.
        ('nova', []),
        ('', []),
        (None, []),
    ],
)
def test_one_of_the_aggregates_of_the_zone_is_required(zone, expected):
    request = {'availability_zone': zone}
    scope = scope_of(map_az_to_placement_aggregate, request, *AGGREGATES, **ON)
    assert scope.required_aggregates == expected
