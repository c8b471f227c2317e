"""Refusals that were right, and those where a host had room all the while."""

from tests.rigs.claim_model import Operation
from tests.rigs.claim_room import Member, Refusal, Room
from tests.rigs.linearizability import UNANSWERED

SMALL = Member(1)
APART, TOGETHER = Member(1, 'g', 'anti-affinity'), Member(1, 'g', 'affinity')
PAIRED = APART._replace(most=2)


def claim(host, start=0.0, end=1.0):
    return Operation('select', start, end, host)


def release(start):
    return Operation('release', start, start + 1, True)


def fitting(capacity, histories, member=SMALL, instances=('new',), lost=0):
    """Return where a request of 10 to 11 fitted."""
    members = dict.fromkeys([*histories, *instances], member)
    room = Room(capacity, members, {'new': [], **histories})
    return room.fitting(Refusal('select', 10, 11, instances, lost=lost))


def test_a_request_fits_when_a_host_had_room_all_the_while():
    assert fitting({'a': 1}, {}) == 'a'
    assert fitting({'a': 1}, {'x': [claim('a')]}) is None
    assert fitting({'a': 2}, {'x': [claim('a')]}) == 'a'


def test_room_counts_as_taken_when_a_release_was_not_answered_before():
    gone = [claim('a'), release(5)]
    assert fitting({'a': 1}, {'x': gone}) == 'a'
    assert fitting({'a': 1}, {'x': [claim('a'), release(9.5)]}) is None
    beside = [claim('a', 4, 6), release(5)]
    assert fitting({'a': 1}, {'x': beside}) is None
    # Unless the claim had been sent before.
    sent = [claim('a', 4, 6)._replace(sent=4.5), release(5)]
    assert fitting({'a': 1}, {'x': sent}) == 'a'


def test_an_unanswered_selection_counts_everywhere_until_a_later_release():
    lost = Operation('select', 0, UNANSWERED, sent=4)
    assert fitting({'a': 1, 'b': 1}, {'x': [lost]}) is None
    assert fitting({'a': 1}, {'x': [lost, release(3)]}) is None
    assert fitting({'a': 1}, {'x': [lost, release(5)]}) == 'a'


def test_several_instances_fit_when_one_host_had_room_for_all():
    assert fitting({'a': 1, 'b': 1}, {}, instances=('new', 'y')) is None
    assert fitting({'a': 2}, {'y': []}, instances=('new', 'y')) == 'a'


def test_a_group_allows_hosts_by_its_policy_alone():
    one, two = {'x': [claim('a')]}, {'x': [claim('a')], 'y': [claim('b')]}
    room = {'a': 9, 'b': 9}
    assert fitting(room, one, APART) == 'b'
    assert fitting(room, two, APART) is None
    assert fitting(room, one, TOGETHER) == 'a'
    assert fitting({'a': 1, 'b': 9}, two, TOGETHER) is None
    assert fitting(room, one | {'y': [claim('a')]}, PAIRED) == 'b'
    assert fitting({'a': 9}, one, PAIRED) == 'a'
    assert fitting({'a': 9}, one | {'y': [claim('a')]}, PAIRED) is None
    both = ('new', 'y')
    assert fitting(room, one | {'y': []}, TOGETHER, both) == 'a'
    # The first may have gone where there was no room for the second.
    assert fitting(room, {'y': []}, TOGETHER, both) is None


def test_a_group_that_is_broken_in_one_place_refuses_nothing_elsewhere():
    broken = {'x': [claim('a')], 'y': [claim('a')]}
    room = {'a': 9, 'b': 9}
    for lost in (0, 4):
        assert fitting(room, broken, APART, lost=lost) == 'b'
    astray = {'x': [claim('a')], 'y': [claim('b')]}
    for lost in (0, 4):
        assert fitting(room, astray, TOGETHER, lost=lost) == 'a'


def test_a_request_loses_its_claims_to_as_many_others():
    def fits(others):
        moving = [Operation('move', 9, 12, 'a') for _ in range(others)]
        return fitting({'a': 1, 'b': 2}, {'x': moving}, lost=4)

    assert fits(1) == fits(2) == 'b'
    assert fits(3) is None


def test_an_instance_does_not_move_to_the_host_that_reported_it():
    def report(kind, start, host='a', listed=True):
        return Operation(kind, start, start + 1, host=host, listed=listed)

    def fits(*reports):
        histories = {'moves': list(reports)}
        return fitting({'a': 1}, histories, instances=('moves',))

    assert fits() == 'a'
    assert fits(report('has', 1)) is None
    assert fits(report('sync', 1)) is None
    assert fits(report('sync', 1, listed=False)) == 'a'
    # Until it is answered that it is elsewhere.
    assert fits(report('has', 1), report('gone', 5)) == 'a'
    assert fits(report('has', 1), report('has', 5, 'b')) == 'a'
    assert fits(report('has', 1), report('gone', 9.5)) is None
    assert fits(report('has', 1), report('gone', 5, 'b')) is None
