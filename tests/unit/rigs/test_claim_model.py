"""Small histories of one instance that are right, or cannot be."""

from typing import Any

import pytest

from tests.rigs.claim_model import NOWHERE, Model, Operation, Place
from tests.rigs.linearizability import UNANSWERED, find_order

MODEL = Model(('a', 'b', 'c'))


def do(kind: str, start: float, answer: Any = None, took: float = 1, **how):
    return Operation(kind, start, start + took, answer, **how)


def lost(kind: str, start: float, number: int = 0, sent: float = UNANSWERED):
    """Return an operation without an answer, and what may undo it."""
    return [
        Operation(kind, start, UNANSWERED, number=number, sent=sent),
        Operation('undo', start, UNANSWERED, number=number),
    ]


def is_explained(*operations: Operation) -> bool:
    return find_order(operations, NOWHERE, MODEL.steps) is not None


def test_a_claim_lives_from_its_selection_to_its_release():
    assert is_explained(
        do('release', 0, False),
        do('select', 2, 'a'),
        do('select', 4, 'a'),
        do('confirm', 6, True),
        do('confirm', 8, False),
        do('release', 10, True),
        do('release', 12, False),
        do('select', 14, 'b'),
    )


@pytest.mark.parametrize(
    'wrong',
    [
        [do('select', 0, 'a'), do('release', 2, True), do('release', 4, True)],
        [do('select', 0, 'a'), do('release', 2, False)],
        [do('select', 0, 'a'), do('select', 2, 'b')],
        [do('select', 0, 'a'), do('read', 2, NOWHERE)],
        [do('release', 0, True)],
        [do('confirm', 0, True)],
        [do('select', 0, 'a'), do('confirm', 2, False)],
        [do('select', 0, 'a'), do('move', 2, 'a')],
        [do('select', 0, 'a'), do('drop_moves', 2, True)],
    ],
    ids=[
        'released twice', 'lost before its release', 'on two hosts',
        'lost in the end', 'never there', 'confirmed nothing',
        'not confirmed', 'moved to where it is', 'dropped nothing',
    ],
)  # fmt: skip
def test_history_has_no_order_when_an_answer_is_wrong(wrong):
    assert not is_explained(*wrong)


def test_a_claim_that_reappears_after_its_release_has_no_order():
    before = [do('select', 0, 'a'), do('release', 2, True)]
    assert not is_explained(*before, do('read', 4, Place('claimed', 'a')))


def test_a_release_beside_a_selection_comes_before_or_after_it():
    beside = [do('select', 0, 'a', took=5), do('release', 1, True, took=2)]
    assert is_explained(*beside, do('read', 9, NOWHERE))
    assert not is_explained(*beside, do('read', 9, Place('claimed', 'a')))
    first = [do('select', 0, 'a', took=5), do('release', 1, False, took=2)]
    assert is_explained(*first, do('read', 9, Place('claimed', 'a')))
    assert not is_explained(*first, do('read', 9, NOWHERE))


def test_two_releases_beside_each_other_release_once():
    once = [do('release', 2, True, took=5), do('release', 3, False, took=5)]
    assert is_explained(do('select', 0, 'a'), *once)
    twice = [do('release', 2, True, took=5), do('release', 3, True, took=5)]
    assert not is_explained(do('select', 0, 'a'), *twice)


def test_a_move_keeps_both_places_until_it_ends():
    start = [do('select', 0, 'a'), do('move', 2, 'b'), do('move', 4, 'b')]
    both = do('read', 6, Place('claimed', 'a', 'b'))
    assert is_explained(*start, both, do('select', 8, 'a'))
    assert is_explained(*start, do('confirm', 6, True), do('select', 8, 'b'))
    assert is_explained(*start, do('drop_moves', 6, True), do('move', 8, 'c'))
    assert is_explained(*start, do('release', 6, True), do('select', 8, 'c'))
    assert not is_explained(*start, do('move', 6, 'c'))
    assert not is_explained(
        *start, do('confirm', 6, True), do('drop_moves', 8, True)
    )


def test_a_move_of_what_is_nowhere_is_its_first_claim():
    moved = do('move', 0, 'a')
    assert is_explained(moved, do('read', 2, Place('claimed', 'a')))


def test_an_unanswered_selection_claims_late_or_never_and_is_undone():
    selected = lost('select', 0)
    assert is_explained(*selected, do('release', 2, False))
    assert is_explained(*selected, do('select', 2, 'c'))
    late = [do('release', 2, False), do('release', 4, True)]
    assert is_explained(*selected, *late)
    undone = [do('select', 2, 'b', took=3), do('release', 3, False)]
    assert is_explained(*selected, *undone)
    twice = [do('release', 2, True), do('release', 4, True)]
    assert not is_explained(*selected, *twice)


def test_undo_takes_back_nothing_that_a_repeated_request_got():
    again = [do('select', 2, 'c'), do('select', 4, 'c')]
    for selected in ([], lost('select', 0), lost('select', 3, number=1)):
        assert is_explained(*selected, *again, do('release', 6, True))
        assert not is_explained(*selected, *again, do('release', 6, False))
        assert not is_explained(*selected, *again, do('select', 6, 'a'))
        assert not is_explained(*selected, *again, do('read', 6, NOWHERE))
    moved = [do('select', 0, 'a'), *lost('move', 2), do('move', 4, 'b')]
    assert is_explained(*moved, do('drop_moves', 6, True))
    assert not is_explained(*moved, do('drop_moves', 6, False))


def test_a_request_that_was_cancelled_has_given_up_what_it_claimed():
    made, undo = lost('select', 0)
    cancelled = [made, undo._replace(end=4)]
    assert is_explained(*cancelled, do('release', 2, True))
    assert is_explained(*cancelled, do('release', 5, False))
    assert not is_explained(*cancelled, do('release', 5, True))
    assert not is_explained(
        *cancelled, do('release', 1, True), do('release', 3, True)
    )


def test_a_release_ends_requests_that_were_sent_before_it():
    beside = do('select', 0, 'a', took=9, sent=1)
    claimed = Place('claimed', 'a')
    assert is_explained(beside, do('release', 2, True))
    assert not is_explained(beside, do('release', 2, False))
    assert not is_explained(beside, do('read', 12, claimed),
                            do('release', 2, False))  # fmt: skip
    # It may have been sent later.
    unsure = beside._replace(sent=UNANSWERED)
    assert is_explained(unsure, do('release', 2, False))
    # One that has no answer is cancelled, too.
    ended = [do('release', 2, False), do('read', 9, claimed)]
    assert is_explained(*lost('select', 0), *ended)
    assert not is_explained(*lost('select', 0, sent=1), *ended)
    assert is_explained(*lost('select', 0, sent=3), *ended)


def test_a_dropped_move_ends_moves_alone_that_were_sent_before_it():
    start, drop = do('select', 0, 'a'), do('drop_moves', 4, False)
    move = do('move', 2, 'b', took=9, sent=3)
    assert is_explained(start, move, drop._replace(answer=True))
    assert not is_explained(start, move, drop)
    assert is_explained(do('select', 2, 'a', took=9, sent=3), drop)


def test_undo_takes_back_nothing_that_is_confirmed_or_claimed_by_others():
    confirmed = [do('select', 1, 'a'), do('confirm', 3, True)]
    gone = do('release', 5, False)
    assert not is_explained(*lost('select', 0), *confirmed, gone)
    assert not is_explained(do('select', 0, 'a'), *lost('select', 2), gone)


def test_an_unanswered_release_explains_one_loss():
    claimed, released = do('select', 0, 'a'), lost('release', 2)
    assert is_explained(claimed, *released, do('select', 4, 'b'))
    assert not is_explained(
        claimed, *released, do('select', 4, 'b'), do('select', 6, 'c')
    )


@pytest.mark.parametrize(
    ('reports', 'place'),
    [
        ([do('has', 4, host='a')], Place('confirmed', 'a', 'b')),
        ([do('has', 4, host='b')], Place('confirmed', 'b')),
        ([do('has', 4, host='c')], Place('reported', 'c')),
        ([do('gone', 4, host='a')], Place('claimed', 'b')),
        ([do('gone', 4, host='b')], Place('claimed', 'a')),
        ([do('gone', 4, host='c')], Place('claimed', 'a', 'b')),
        ([do('sync', 4, host='a')], Place('claimed', 'a', 'b')),
        (
            [do('has', 4, host='a'), do('sync', 6, host='a')],
            Place('confirmed', 'b'),
        ),
        ([do('has', 4, host='c'), do('sync', 6, host='c')], NOWHERE),
        ([do('sync', 4, host='b', listed=True)], Place('confirmed', 'b')),
    ],
)
def test_hosts_that_report_an_instance_that_moves_change_its_place(
    reports, place
):
    moving = [do('select', 0, 'a'), do('move', 2, 'b')]
    assert is_explained(*moving, *reports, do('read', 8, place))
    assert not is_explained(
        *moving, *reports, do('read', 8, Place('claimed', 'c'))
    )


def test_what_is_only_reported_holds_no_claim():
    reported = do('has', 0, host='a')
    assert is_explained(
        reported,
        do('release', 2, False),
        do('read', 4, Place('reported', 'a')),
    )
    assert is_explained(reported, do('select', 2, 'b'), do('release', 4, True))
