"""A message that is delivered again gets its first outcome again."""

from __future__ import annotations

import contextlib
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.recall import Outcomes
from tests.support.databases import DATABASES, connect
from tests.support.documents import SMALL
from tests.support.engines import (
    NotAnswered,
    always,
    confirm,
    drop_moves,
    release,
    select,
    select_many,
    start_engine,
    zone,
)
from tests.support.stores import import_inventory, wipe
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db

# One instance of this flavor fills a host of tests.support.documents.
LARGE = {'vcpus': 1, 'memory_mb': 8192}


@pytest.fixture(scope='module', params=DATABASES)
def shared(request, shared_url):
    """A store, and two engines that share it."""
    store = connect(shared_url(request.param))
    wipe(store)
    import_inventory(store)
    running = [start_engine(store), start_engine(store)]
    yield store, running
    for engine in running:
        engine.stop()
    store.dispose()


@pytest.fixture
def store(shared):
    """The store of the module; its claims go with the test."""
    used, _ = shared
    yield used
    left = list(claimed(used))
    used.write(lambda writer: lifecycle.release(writer, left))


@pytest.fixture
def engines(store, shared):
    return shared[1]


@pytest.fixture
def one(engines):
    return engines[0]


@pytest.fixture
def two(engines):
    return engines[1]


def new_uuid() -> str:
    return str(uuid.uuid4())


def claimed(store) -> dict[str, str]:
    """Return the host of each instance that holds a claim."""
    with store.reading() as conn:
        instances, moves = schema.instances, schema.moves
        found = {
            uuid: host
            for table in (
                sa.select(instances.c.uuid, instances.c.host),
                sa.select(moves.c.instance_uuid, moves.c.host),
            )
            for uuid, host in conn.execute(table)
        }
        used = conn.execute(
            sa.select(schema.allocations.c.consumer_uuid).distinct()
        ).scalars()
        assert {*used} == {*found}
        return found


def count(engine, name: str) -> int:
    return int(engine.status()['counters'].get(name, 0))


def age(store, seconds: float) -> None:
    """Let what is recorded be older."""
    with store.engine.begin() as conn:
        for column in (
            schema.outcomes.c.created_at,
            schema.releases.c.released_at,
        ):
            conn.execute(
                sa.update(column.table).values({column: column - seconds})
            )


def prune(store, retention: float) -> None:
    store.write(lambda writer: outcomes.prune(writer, retention))


def test_a_refused_request_claims_nothing_when_there_is_room_later(
    store, one, two
):
    filling = select([new_uuid() for _ in range(4)], flavor=LARGE)
    filled = filling.run(one)
    refused = select([new_uuid()], flavor=LARGE)
    # Another daemon had it, and may have it still.
    refused.deliveries = 1
    answer = refused.run(one)
    assert answer == {'error': 'NoValidHost'}
    release(filled['placements'][0]['instance_uuid']).run(one)
    assert refused.run(two) == answer
    assert len(claimed(store)) == 3


def test_the_reasons_of_a_refusal_are_given_again(store, one, two):
    refused = select([new_uuid()], flavor={'vcpus': 1000})
    first = refused.deliver(one).exception(LIMIT_S)
    again = refused.deliver(two).exception(LIMIT_S)
    assert again.to_dict() == first.to_dict()


def test_a_released_claim_is_not_made_again(store, one, two):
    wanted = new_uuid()
    before = count(two, 'outcomes_repeated')
    asked = select([wanted])
    answer = asked.run(one)
    assert release(wanted).run(two) == [wanted]
    assert asked.run(two) == answer
    assert claimed(store) == {}
    assert count(two, 'outcomes_repeated') == before + 1


def test_a_claim_is_recalled_with_its_alternates(store, one, two):
    asked = select([new_uuid(), new_uuid()])
    answer = asked.run(one)
    assert answer['placements'][0]['alternates']
    assert asked.run(two) == answer
    assert len(claimed(store)) == 2


def test_a_request_without_ids_is_claimed_once(store, one, two):
    asked = select([], num_instances=2)
    answer = asked.run(one)
    assert asked.run(two) == answer
    assert len(claimed(store)) == 2


def test_a_claim_that_a_host_removed_is_not_made_again(store, one, two):
    wanted = new_uuid()
    asked = select([wanted])
    answer = asked.run(one)
    host = answer['placements'][0]['selected']['host']
    store.write(lambda w: lifecycle.remove_from_host(w, host, [wanted]))
    assert asked.run(two) == answer
    assert claimed(store) == {}


def test_a_part_of_a_request_that_was_released_is_not_claimed_again(
    store, one, two
):
    stays, goes = new_uuid(), new_uuid()
    asked = select([stays, goes])
    answer = asked.run(one)
    release(goes).run(one)
    assert asked.run(two) == answer
    assert {*claimed(store)} == {stays}


def test_a_repeated_request_does_not_claim_after_the_release(store, one, two):
    wanted = new_uuid()
    first, second = select([wanted]), select([wanted])
    answer = first.run(one)
    assert second.run(one)['placements'] == answer['placements']
    release(wanted).run(one)
    assert second.run(two)['placements'] == answer['placements']
    assert claimed(store) == {}


@pytest.mark.parametrize('stamped', [True, False])
def test_a_release_cancels_a_request_that_no_daemon_finished(
    store, one, two, stamped
):
    wanted = new_uuid()
    asked = select([wanted])
    asked.stamped = stamped
    # The daemon that had it first was killed before it did anything.
    asked.deliveries = 1
    assert release(wanted).run(one) == []
    assert asked.run(two) == {'error': 'RequestCancelled'}
    assert asked.run(one) == {'error': 'RequestCancelled'}
    assert claimed(store) == {}


def test_a_request_after_a_release_claims(store, one, two):
    wanted = new_uuid()
    select([wanted]).run(one)
    release(wanted).run(one)
    later, killed = select([wanted]), select([new_uuid()])
    assert 'placements' in later.run(two)
    killed.deliveries = 1
    assert 'placements' in killed.run(two)
    release(wanted).run(one)
    redelivered = select([wanted])
    redelivered.deliveries = 1
    assert 'placements' in redelivered.run(two)
    assert wanted in claimed(store)


def test_a_release_answers_the_same_again(store, one, two):
    wanted = new_uuid()
    select([wanted]).run(one)
    asked = release(wanted)
    assert asked.run(one) == [wanted]
    later = select([wanted]).run(one)
    assert asked.run(two) == [wanted]
    assert claimed(store)[wanted] == later['placements'][0]['selected']['host']


def test_a_confirmation_answers_the_same_again(store, one, two):
    wanted = new_uuid()
    select([wanted]).run(one)
    asked = confirm(wanted)
    assert asked.run(one) == [wanted]
    assert asked.run(two) == [wanted]


@pytest.mark.parametrize('end', [confirm, drop_moves])
def test_a_move_that_ended_is_not_made_again(store, one, two, end):
    wanted = new_uuid()
    select([wanted]).run(one)
    confirm(wanted).run(one)
    asked = select([wanted], move=True)
    answer = asked.run(one)
    assert end(wanted).run(two) == [wanted]
    before = claimed(store)
    assert asked.run(two) == answer
    assert claimed(store) == before
    with store.reading() as conn:
        assert conn.execute(sa.select(schema.moves)).all() == []


def test_a_dropped_move_cancels_one_that_no_daemon_finished(store, one, two):
    wanted = new_uuid()
    select([wanted]).run(one)
    asked = select([wanted], move=True)
    asked.deliveries = 1
    assert drop_moves(wanted).run(one) == []
    assert asked.run(two) == {'error': 'RequestCancelled'}


def test_the_claim_before_a_move_is_recalled(store, one, two):
    wanted = new_uuid()
    asked = select([wanted])
    answer = asked.run(one)
    select([wanted], move=True).run(one)
    confirm(wanted).run(one)
    before = claimed(store)
    assert asked.run(two) == answer
    assert claimed(store) == before


def never_answered(store: Store) -> None:
    """Leave what a daemon leaves that ends before it answers."""
    whole = schema.outcomes.c.instance_uuid == ''
    store.write(
        lambda w: (
            w.conn.execute(sa.delete(schema.outcomes).where(whole)) and None
        )
    )


def test_a_request_is_cancelled_whole_when_a_part_was_released(
    store, one, two
):
    """An earlier request placed one; the answer was not sent."""
    earlier, more = new_uuid(), new_uuid()
    select([earlier]).run(one)
    asked = select([earlier, more])
    asked.run(one)
    never_answered(store)
    release(earlier).run(one)
    assert asked.run(two) == {'error': 'RequestCancelled'}
    assert claimed(store) == {}


def test_a_request_is_cancelled_when_its_other_claims_were_undone(
    store, one, two
):
    released, undone = new_uuid(), new_uuid()
    asked = select([released, undone])
    asked.run(one)
    never_answered(store)
    release(released).run(one)
    store.write(lambda w: lifecycle.release(w, [undone], final=False) and None)
    assert asked.run(two) == {'error': 'RequestCancelled'}
    assert claimed(store) == {}


def test_a_place_that_an_earlier_request_lost_is_chosen_again(store, one, two):
    earlier, more = new_uuid(), new_uuid()
    select([earlier]).run(one)
    asked = select([earlier, more])
    before = asked.run(one)['placements']
    never_answered(store)
    store.write(
        lambda w: lifecycle.release(w, [earlier], final=False) and None
    )
    after = asked.run(two)['placements']
    assert after[1] == before[1]
    assert {*claimed(store)} == {earlier, more}


def undo(engine, message, *uuids: str) -> list[str]:
    """Undo what a message claimed, as where its answer is too late."""
    done = engine.undo(uuids, DeliveredMessage(message.id), 0)
    return done.result(LIMIT_S)


def test_a_repeated_request_is_not_answered_with_a_claim_that_is_undone(
    store, one, two, monkeypatch
):
    """It found the claim of the first one, which is undone meanwhile."""
    wanted = new_uuid()
    first, again = select([wanted]), select([wanted])
    first.run(one)
    record, undone = Outcomes.record, []

    def undo_before(self, *args):
        if not undone:
            undone.extend(undo(one, first, wanted))
        record(self, *args)

    monkeypatch.setattr(Outcomes, 'record', undo_before)
    answer = again.run(two)
    assert undone == [wanted]
    host = answer['placements'][0]['selected']['host']
    assert claimed(store) == {wanted: host}
    assert undo(one, first, wanted) == []
    assert claimed(store) == {wanted: host}


def test_a_claim_that_a_repeated_request_got_is_not_undone(store, one, two):
    """Also where its answer is put together from what is stored."""
    wanted, more = new_uuid(), new_uuid()
    first, again = select([wanted]), select([wanted, more])
    first.run(one)
    answer = again.run(two)
    never_answered(store)
    assert again.run(one) == answer
    assert undo(one, first, wanted) == []
    assert {*claimed(store)} == {wanted, more}


def test_each_entry_of_a_message_is_recalled(store, one, two):
    kept, gone = new_uuid(), new_uuid()
    asked = select_many([kept], [gone], 'example.org.')
    answer = asked.run(one)
    release(gone).run(one)
    assert asked.run(two) == answer
    assert {*claimed(store)} == {kept}


def test_a_zone_that_was_refused_is_not_stored_later(store, one, two):
    refused = zone('a.org.', attributes={'l': 'bronze'})
    first = refused.run(one)
    import_inventory(store, {
        'pools': [{'id': new_uuid(), 'name': 'bronze',
                   'attributes': {'l': 'bronze'}}],
    })  # fmt: skip
    assert refused.run(two) == first
    stored = zone('b.org.', attributes={'l': 'gold'})
    assert stored.run(one) == stored.run(two)


def test_a_busy_daemon_does_not_claim_later(store, two):
    busy = start_engine(store)
    busy._queue.size = 1
    try:
        asked = select_many([new_uuid()], [new_uuid()], [new_uuid()])
        answer = asked.run(busy)
        assert {'error': 'ServiceBusy'} in answer
        assert asked.run(two) == answer
        assert len(claimed(store)) == 1
    finally:
        busy.stop()


def test_a_request_waits_when_its_outcome_cannot_be_looked_up(
    store, one, two, monkeypatch
):
    asked = select([new_uuid()])
    first = asked.run(one)
    look_up, failures = Outcomes.recall, [errors.StoreUnavailable()]

    def fail_once(self, *args):
        if failures:
            raise failures.pop()
        return look_up(self, *args)

    # A stand-in: a real database would have to go away in this very query.
    monkeypatch.setattr(Outcomes, 'recall', fail_once)
    assert asked.run(two) == first
    assert failures == []


def test_a_message_beyond_the_retention_is_refused(store, one, two):
    before = count(two, 'outcomes_expired')
    wanted = new_uuid()
    asked, refused = select([wanted]), select([], flavor={'vcpus': 1000})
    asked.stamped = refused.stamped = False
    refused.deliveries = 1
    asked.run(one)
    refused.run(one)
    release(wanted).run(one)
    age(store, 200)
    prune(store, 100.0)
    for message in (asked, refused):
        assert message.run(two) == {'error': 'OutcomeExpired'}
    assert claimed(store) == {}
    assert count(two, 'outcomes_expired') == before + 2


def test_an_old_message_is_refused_when_nothing_is_known_of_it(store, one):
    asked = select([new_uuid()])
    asked.deliveries, asked.sent_at = 1, asked.sent_at - 100_000
    assert asked.run(one) == {'error': 'OutcomeExpired'}


def test_a_claim_is_recalled_beyond_the_retention(store, one, two):
    asked = select([new_uuid()])
    answer = asked.run(one)
    asked.run(two)
    age(store, 200)
    prune(store, 100.0)
    assert asked.run(two) == answer


def test_outcomes_are_deleted_in_the_end(store, one):
    wanted = new_uuid()
    select([wanted]).run(one)
    release(wanted).run(one)
    age(store, 1000)
    prune(store, 100.0)
    with store.reading() as conn:
        assert conn.execute(sa.select(schema.outcomes)).all() == []
        assert conn.execute(sa.select(schema.releases)).all() == []


def test_a_release_comes_after_the_requests_that_came_before_it(store, one):
    wanted = [new_uuid() for _ in range(30)]
    answers = []
    for number, each in enumerate(wanted):
        answers.append(select([each], flavor=SMALL).deliver(one))
        if number % 3 == 0:
            answers.append(release(each).deliver(one))
        if number % 6 == 0:
            answers.append(select([each], flavor=SMALL).deliver(one))
    for answer in answers:
        assert answer.result(LIMIT_S)
    gone = {each for at, each in enumerate(wanted) if at % 3 == 0 and at % 6}
    assert {*claimed(store)} == {*wanted} - gone


def test_release_by_a_clock_that_is_ahead_cancels_no_later_request(
    store, one, two
):
    each = new_uuid()
    released = release(each)
    released.sent_at += 60
    assert _outcome(released.deliver(two)) == []
    assert select([each], flavor=SMALL).deliver(one).result(LIMIT_S)
    assert each in claimed(store)


def test_two_copies_of_a_message_at_once_have_one_outcome(store, one, two):
    for _ in range(10):
        asked = select([new_uuid()], flavor=LARGE)
        first, second = asked.deliver(one, always), asked.deliver(two)
        answer = _outcome(second)
        with contextlib.suppress(NotAnswered):
            assert _outcome(first) == answer
    assert len(claimed(store)) == 4


def _outcome(future) -> object:
    try:
        result = future.result(LIMIT_S)
    except errors.SchedulerError as error:
        return error.name
    return getattr(result, 'placements', result)
