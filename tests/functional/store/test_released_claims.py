"""Claims that nobody uses are released, and no others."""

import uuid
from concurrent import futures

import pytest

from scheduler_service.model import ServerGroup
from scheduler_service.store.claims import lifecycle, outcomes, released_claims
from scheduler_service.store.writing import server_groups
from tests.support.stores import (
    audit_findings,
    load_snapshot,
    move_of,
    used_memory,
    write_claims,
)

pytestmark = pytest.mark.db

GROUP = 'aaaaaaaa-0000-4000-8000-000000000002'


def undo(store, consumer, key='m/0'):
    return store.write(lambda w: released_claims.undo(w, [consumer], key))


def test_what_a_message_claimed_is_undone_once(store, claim):
    assert undo(store, claim.consumer) == [claim.consumer]
    assert undo(store, claim.consumer) == []
    assert used_memory(store) == [0, 0]
    assert audit_findings(store) == []
    # The message may come again, and is processed anew.
    with store.reading() as conn:
        assert outcomes.find(conn, 'm/0') == []


def test_what_another_message_claimed_stays(store, claim):
    assert undo(store, claim.consumer, 'n/0') == []
    assert used_memory(store) == [1024, 0]


@pytest.mark.parametrize(('host', 'left'), [('compute-1', 0), ('x', 1024)])
def test_only_the_claim_on_its_own_host_is_given_up(store, claim, host, left):
    places = {claim.consumer: (host, host)}
    store.write(lambda w: released_claims.give_up(w, places, moves=False))
    assert used_memory(store) == [left, 0]
    assert audit_findings(store) == []


def test_nothing_is_given_up_once_its_request_is_answered(store, claim):
    places = {claim.consumer: ('compute-1', 'compute-1')}
    answer = outcomes.RecordedOutcome('m/0', outcomes.RESULT, '{}')
    store.write(lambda w: outcomes.add(w.conn, [answer]))
    store.write(lambda w: released_claims.give_up(w, places, False, 'm/0'))
    assert used_memory(store) == [1024, 0]
    store.write(lambda w: released_claims.give_up(w, places, False, 'n/0'))
    assert used_memory(store) == [0, 0]


@pytest.mark.parametrize('names_it', [True, False])
def test_what_another_request_got_as_its_answer_is_not_given_up(
    store, claim, names_it
):
    named = claim.consumer if names_it else uuid.uuid4()
    answer = outcomes.RecordedOutcome(
        'n/0', outcomes.RESULT, f'{{"placements": ["{named}"]}}'
    )
    store.write(lambda w: outcomes.add(w.conn, [answer]))
    places = {claim.consumer: ('compute-1', 'compute-1')}
    store.write(lambda w: released_claims.give_up(w, places, False, 'm/0'))
    assert used_memory(store) == [1024 if names_it else 0, 0]


def test_what_a_host_confirmed_stays(store, claim):
    seen = {claim.consumer: 'compute-1'}
    store.write(lambda w: lifecycle.confirm(w, seen))
    assert undo(store, claim.consumer) == []
    assert used_memory(store) == [1024, 0]


@pytest.mark.parametrize(
    ('key', 'names_it', 'kept'),
    [('n/0', True, True), ('n/0', False, False), ('m/0', True, False)],
)
def test_what_another_message_got_as_its_answer_stays(
    store, claim, key, names_it, kept
):
    named = claim.consumer if names_it else uuid.uuid4()
    outcome = outcomes.RecordedOutcome(
        key, outcomes.RESULT, f'{{"placements": ["{named}"]}}'
    )
    store.write(lambda w: outcomes.add(w.conn, [outcome]))
    assert bool(undo(store, claim.consumer)) is not kept


def test_a_move_is_undone_and_the_present_place_stays(store, claim, moving):
    seen = {claim.consumer: 'compute-1'}
    store.write(lambda w: lifecycle.confirm(w, seen))
    assert used_memory(store) == [1024, 1024]
    assert undo(store, claim.consumer, 'n/0') == [claim.consumer]
    assert used_memory(store) == [1024, 0]
    assert audit_findings(store) == []


def supersede(store, consumer, key):
    return store.write(lambda w: released_claims.supersede(w, [consumer], key))


def test_a_later_message_gives_up_what_an_earlier_one_claimed(store, claim):
    assert supersede(store, claim.consumer, 'm/0') == []
    assert used_memory(store) == [1024, 0]
    assert supersede(store, claim.consumer, 'n/0') == [claim.consumer]
    assert used_memory(store) == [0, 0]
    assert audit_findings(store) == []
    # Where the earlier one comes again, it claims anew.
    with store.reading() as conn:
        assert outcomes.find(conn, 'm/0') == []


def test_a_message_without_a_key_gives_up_every_earlier_claim(store, claim):
    assert supersede(store, claim.consumer, None) == [claim.consumer]


def test_a_later_message_gives_up_a_move_and_keeps_the_place(
    store, snapshot, claim
):
    seen = {claim.consumer: 'compute-1'}
    store.write(lambda w: lifecycle.confirm(w, seen))
    assert supersede(store, claim.consumer, 'o/0') == []
    write_claims(store, move_of(snapshot, claim.consumer, key='n/0'))
    assert supersede(store, claim.consumer, 'n/0') == []
    assert supersede(store, claim.consumer, 'o/0') == [claim.consumer]
    assert used_memory(store) == [1024, 0]
    assert audit_findings(store) == []


def test_instances_run_somewhere_once_a_host_has_them(store, claim):
    def run():
        with store.reading() as conn:
            return released_claims.run_somewhere(conn, [claim.consumer])

    assert not run()
    seen = {claim.consumer: 'compute-1'}
    store.write(lambda w: lifecycle.confirm(w, seen))
    assert run()


def put(store, **fields):
    return store.write(
        lambda w: server_groups.put(w, ServerGroup(uuid=GROUP, **fields))
    )


def test_daemons_may_add_a_server_group_at_the_same_time(store):
    members = [str(uuid.uuid4()) for _ in range(8)]
    with futures.ThreadPoolExecutor(4) as pool:
        added = pool.map(lambda one: put(store, members=[one]), members)
        assert all(added)
    group = load_snapshot(store).hosts.groups[GROUP]
    assert sorted(group.members) == sorted(members)


def test_a_server_group_is_added_then_completed(store):
    members = [str(uuid.uuid4()) for _ in range(3)]
    assert put(store, members=members[:1])
    assert not put(store, members=members[:1])
    # One that has joined meanwhile stays.
    assert put(store, members=members[1:])
    assert put(store, policy='affinity')
    assert not put(store, policy='affinity')
    assert put(store, rules={'max_server_per_host': 2})
    group = load_snapshot(store).hosts.groups[GROUP]
    assert sorted(group.members) == sorted(members)
    assert group.policy == 'anti-affinity'
    assert group.max_server_per_host == 2
