"""CrossCellWeigher prefers hosts in the cell of the instance."""

import pytest

from scheduler_service.weighers.cross_cell_weigher import CrossCellWeigher
from tests.support.plugins import inventory, raw_weights

HOSTS = inventory(a={'cell_uuid': 'x'}, b={'cell_uuid': 'y'}, c={})


def move(**destination):
    return {'requested_destination': destination}


def test_hosts_in_the_cell_have_one_and_others_minus_one():
    request = move(cell='x', allow_cross_cell_move=True)
    weights = raw_weights(CrossCellWeigher(), HOSTS, request)
    assert weights == {'a': 1, 'b': -1, 'c': -1}


def test_a_cell_without_hosts_is_preferred_to_no_effect():
    request = move(cell='z', allow_cross_cell_move=True)
    weights = raw_weights(CrossCellWeigher(), HOSTS, request)
    assert weights == {'a': -1, 'b': -1, 'c': -1}


@pytest.mark.parametrize(
    'request_',
    [
        {},
        move(cell='x'),
        move(cell='x', allow_cross_cell_move=False),
        move(allow_cross_cell_move=True),
    ],
)
def test_it_has_no_opinion_unless_a_move_may_cross_cells(request_):
    assert raw_weights(CrossCellWeigher(), HOSTS, request_) is None
