"""Allocations that nobody holds: none is left, whatever happens to calls.

Each kind of claim meets each fault of the placement service. The
service is a stand-in, since the real one has no such faults to order; the
engines, their store and their connections are real.
"""

import contextlib
import time
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries, stage_records
from scheduler_service.store.connection import Store
from tests.rigs import fake_placement
from tests.rigs.fake_placement import FakePlacement
from tests.support import placement_engines
from tests.support.databases import migrated_database
from tests.support.engines import Message, NotAnswered, store_all
from tests.support.placement_engines import (
    TAKEN,
    add_host,
    new,
    records,
    request,
)
from tests.support.stores import claim_state
from tests.support.tcp_proxy import Mode, through_proxy
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.db, pytest.mark.slow]
COUNT = 4
KINDS = ('plain', 'tree', 'move', 'several')
# Of calls that meet a fault; what goes before has the time it needs.
_TIMEOUT_S = 0.5


@pytest.fixture
def store(make_store: Any) -> Any:
    """A store of the kind that most daemons have."""
    return make_store('postgresql')


@pytest.fixture(autouse=True)
def _calls_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_records, 'CALL_ENDS_S', 1.5)


def has_two_hosts(store: Any, fake: FakePlacement) -> None:
    """Add hosts with room for all."""
    for _ in range(2):
        fake.add_provider(add_host(store, fake), CUSTOM_FPGA=64)


def asked(kind: str) -> tuple[list[str], Any]:
    """Return the instances of a request, and the request."""
    uuids = new(2 if kind == 'several' else 1)
    return uuids, request(*uuids, custom=kind == 'tree')


def select(engine: Any, kind: str, wanted: Any) -> Any:
    """Have instances placed, or moved; return the future."""
    return engine.select_destinations(wanted, move=kind == 'move')


def placed(engine: Any) -> list[tuple[str, list[str], Any]]:
    """Return requests of each kind; those that are to move have a place."""
    made = [(kind, *asked(kind)) for _ in range(COUNT // 2) for kind in KINDS]
    for kind, uuids, wanted in made:
        if kind == 'move':
            engine.select_destinations(wanted).result(LIMIT_S)
            engine.confirm(uuids).result(LIMIT_S)
    return made


def end(engine: Any, kind: str, uuids: list[str]) -> None:
    """Release what a request claimed: the move, or all of it."""
    verb = engine.drop_moves if kind == 'move' else engine.release
    verb(uuids).result(LIMIT_S)


def error_of(future: Any) -> str:
    """Return the name of the error that an answer is; empty: none."""
    try:
        future.result(LIMIT_S)
    except errors.SchedulerError as error:
        return error.name
    return ''


def only(fake: FakePlacement, before: Any, store: Any, kept: Any) -> None:
    """Wait until there is what there was before, and nothing else to do."""
    wait_until(
        lambda: fake.allocations == before and records(store) == kept,
        pause_s=0.1,
    )


def looks(store: Any, keys: Any) -> list[int]:
    """Return how often it was looked for what records say."""
    table = schema.stage_records.c
    query = sa.select(table.instance_uuid, table.host_id, table.looks)
    with store.reading() as conn:
        return [
            count
            for uuid, host_id, count in conn.execute(query)
            if (uuid, host_id) in keys
        ]


@pytest.mark.parametrize(
    'fault',
    [
        fake_placement.late(1.0),
        fake_placement.commits_and_fails,
        fake_placement.half_a_line,
        fake_placement.login_page,
    ],
    ids=['late', 'commits-and-fails', 'half-a-line', 'login-page'],
)
def test_nothing_is_left_of_claims_whose_calls_fail(store, fake, fault):
    has_two_hosts(store, fake)
    with placement_engines.engine(store, fake) as engine:
        made = placed(engine)
        before, kept = dict(fake.allocations), records(store)
    with placement_engines.engine(store, fake, _TIMEOUT_S) as engine:
        fake.fail(fault, fake.claims)
        futures = [select(engine, kind, wanted) for kind, _, wanted in made]
        answers = {error_of(future) for future in futures}
        assert answers == {'PlacementUnavailable'}
        fake.work()
        only(fake, before, store, kept)
        time.sleep(1.0)
        assert fake.allocations == before


@pytest.mark.parametrize(
    ('fault', 'times'),
    [
        (fake_placement.answer(409, 'placement.concurrent_update'), 5),
        (fake_placement.answer(400), 2),
        (fake_placement.answer(500), 2),
        (fake_placement.late(1.0), 1),
        (fake_placement.commits_and_fails, 1),
        (fake_placement.login_page, 2),
    ],
    ids=['409', '400', '500', 'late', 'commits-and-fails', 'login-page'],
)
def test_nothing_is_left_of_released_claims_whose_undoing_fails(
    store, fake, fault, times
):
    has_two_hosts(store, fake)
    with placement_engines.engine(store, fake) as engine:
        made = placed(engine)
        before, kept = dict(fake.allocations), records(store)
        for kind, _, wanted in made:
            assert error_of(select(engine, kind, wanted)) == ''
    with placement_engines.engine(store, fake, _TIMEOUT_S) as engine:
        fake.fail(fault, fake.undoes, times)
        for kind, uuids, _ in made:
            end(engine, kind, uuids)
        only(fake, before, store, kept)


def test_nothing_is_left_when_another_daemon_releases_during_the_call(
    store, fake
):
    has_two_hosts(store, fake)
    with (
        placement_engines.engine(store, fake) as engine,
        placement_engines.engine(store, fake) as other,
    ):
        made = placed(engine)
        before, kept = dict(fake.allocations), records(store)
        for kind, uuids, wanted in made:
            held = fake_placement.Held()
            fake.fail(held, fake.claims, 1)
            future = select(engine, kind, wanted)
            wait_until(lambda held=held: held.waiting)
            end(other, kind, uuids)
            wait_until(lambda: all(looks(store, records(store) - kept)))
            held.let_go()
            error_of(future)
            fake.work()
        only(fake, before, store, kept)


def test_a_request_of_two_goes_elsewhere_when_undoing_one_fails(store, fake):
    for amounts in ({}, {'VCPU': 0}, {}):
        add_host(store, fake, **amounts)
    conflict = fake_placement.answer(409, 'placement.concurrent_update')
    with placement_engines.engine(store, fake) as engine:
        made = [asked('several') for _ in range(COUNT)]
        fake.fail(conflict, fake.undoes, 5)
        futures = [select(engine, 'several', wanted) for _, wanted in made]
        assert [error_of(future) for future in futures] == [''] * COUNT
        for uuids, _ in made:
            assert all(len(fake.allocations[one]) == 1 for one in uuids)
            engine.release(uuids).result(LIMIT_S)
        only(fake, {}, store, set())


def test_what_was_taken_back_is_not_recorded_as_chosen(store, fake):
    add_host(store, fake)
    with placement_engines.engine(store, fake) as engine:
        bad = request(*new(), request_id='req-bad')
        good = request(*new(), request_id='req-good')
        fake.fail(fake_placement.answer(500), fake.claims)
        assert error_of(select(engine, 'plain', bad)) == 'PlacementUnavailable'
        fake.work()
        assert error_of(select(engine, 'plain', good)) == ''
        store_all(engine)
        with store.reading() as conn:
            found = conn.execute(
                sa.select(
                    schema.decisions.c.request_id, schema.decisions.c.outcome
                )
            ).all()
        assert sorted(tuple(row) for row in found) == [
            ('req-bad', 'PlacementUnavailable'),
            ('req-good', 'chosen'),
        ]


def test_one_odd_consumer_stops_no_other(store, fake):
    has_two_hosts(store, fake)
    with placement_engines.engine(store, fake) as engine:
        made = [asked('plain') for _ in range(COUNT)]
        for _, wanted in made:
            assert error_of(select(engine, 'plain', wanted)) == ''
        odd = made[0][0][0]
        fake.odd.add(odd)
        for uuids, _ in made:
            engine.release(uuids).result(LIMIT_S)
        wait_until(lambda: fake.allocations.keys() == {odd})
        fake.odd.clear()
        only(fake, {}, store, set())


def test_a_claim_waits_until_an_earlier_one_is_undone(store, fake):
    add_host(store, fake)
    with placement_engines.engine(store, fake) as engine:
        (one,), wanted = asked('plain')
        assert error_of(select(engine, 'plain', wanted)) == ''
        held = fake_placement.Held()
        fake.fail(held, fake.undoes, 1)
        engine.release([one]).result(LIMIT_S)
        wait_until(lambda: held.waiting)
        again = select(engine, 'plain', request(one))
        time.sleep(0.5)
        assert not again.done()
        held.let_go()
        assert error_of(again) == ''
        assert len(fake.allocations[one]) == 1
        assert claim_state(store, one) == 'claimed'


def test_a_refused_claim_is_released_when_the_database_was_away(
    fake, postgresql
):
    failing = fake_placement.Held(fake_placement.answer(500))
    database = migrated_database(postgresql[1])
    with through_proxy(database) as (proxy, proxied):
        store = Store.connect(proxied, max_pool_size=20)
        add_host(store, fake)
        with placement_engines.engine(store, fake) as engine:
            (one,), wanted = asked('plain')
            fake.fail(failing, fake.claims)
            future = select(engine, 'plain', wanted)
            wait_until(lambda: failing.waiting)
            proxy.become(Mode.REFUSE)
            failing.let_go()
            time.sleep(2.0)
            assert not future.done()
            proxy.become(Mode.FORWARD)
            assert error_of(future) == 'PlacementUnavailable'
            assert claim_state(store, one) is None
        store.dispose()


def test_a_claim_is_made_when_one_call_of_it_fails(store, fake):
    """One reset connection, or one 503, is no reason to refuse."""
    add_host(store, fake)
    with placement_engines.engine(store, fake, retries=3) as engine:
        for fault in (fake_placement.answer(503), fake_placement.half_a_line):
            (one,), wanted = asked('plain')
            fake.fail(fault, fake.claims, 1)
            assert error_of(select(engine, 'plain', wanted)) == ''
            assert len(fake.allocations[one]) == 1
            engine.release([one]).result(LIMIT_S)
        only(fake, {}, store, set())


def test_a_claim_stays_when_an_earlier_call_of_it_fails_later(store, fake):
    """The service then deletes the consumer that the earlier call made."""
    add_host(store, fake)
    with placement_engines.engine(store, fake, 2.0, 3) as engine:
        (one,), wanted = asked('plain')
        outlived = fake_placement.Outlived()
        fake.fail(outlived, fake.claims, 1)
        assert error_of(select(engine, 'plain', wanted)) == ''
        outlived.let_go()
        assert outlived.failed.wait(LIMIT_S)
        assert len(fake.allocations[one]) == 1
        engine.release([one]).result(LIMIT_S)
        only(fake, {}, store, set())


def test_a_move_that_was_taken_back_and_made_elsewhere_is_dropped(store, fake):
    uuids, first = asked('plain')
    room = add_host(store, fake)
    with placement_engines.engine(store, fake) as engine:
        assert error_of(select(engine, 'plain', first)) == ''
        engine.confirm(uuids).result(LIMIT_S)
        before = dict(fake.allocations)
        # The first choice has no room, which only the service knows.
        add_host(store, fake, VCPU=0)
        add_host(store, fake)
        for _ in range(3):
            wanted = request(*uuids, ignore_hosts=[f'h-{room}'])
            # It may be delivered again, so that what became of it is kept.
            message = Message('select_destinations', (wanted,), {'move': True})
            assert 'error' not in message.run(engine)
            assert uuids == engine.drop_moves(uuids).result(LIMIT_S)
            wait_until(lambda: fake.allocations == before)


@pytest.mark.parametrize('lost_at_once', [True, False])
def test_two_copies_of_a_message_get_one_answer_when_one_gives_up(
    store, fake, lost_at_once
):
    """The copy finds no room; the call of the first one is made later."""
    has_two_hosts(store, fake)
    uuids, wanted = asked('plain')
    message = Message('select_destinations', (wanted,))
    held = fake_placement.Held()
    with (
        placement_engines.engine(store, fake) as one,
        placement_engines.engine(store, fake) as two,
    ):
        fake.fail(held, fake.claims, 1)
        slow = message.deliver(one, lambda: lost_at_once or held.waiting)
        wait_until(lambda: held.waiting)
        no_room = fake_placement.answer(409, 'placement.undefined_code')
        fake.fail(no_room, fake.claims, 1)
        quick = message.deliver(two).result(LIMIT_S)
        held.let_go()
        place = quick.placements[0].selected
        with contextlib.suppress(NotAnswered):
            assert slow.result(LIMIT_S).placements[0].selected == place
        only(fake, {uuids[0]: {place.uuid: TAKEN}}, store, records(store))
        with store.reading() as conn:
            assert claim_queries.show(conn, uuids[0])['host'] == place.host


def test_a_copy_of_a_message_is_not_answered_with_claims_that_are_not_made(
    store, fake
):
    """The call of the first one is under way; that of the copy fails."""
    has_two_hosts(store, fake)
    _, wanted = asked('plain')
    message = Message('select_destinations', (wanted,))
    held = fake_placement.Held(fake_placement.answer(500))
    with (
        placement_engines.engine(store, fake) as one,
        placement_engines.engine(store, fake) as two,
    ):
        fake.fail(held, fake.claims, 1)
        slow = message.deliver(one)
        wait_until(lambda: held.waiting)
        fake.fail(fake_placement.answer(500), fake.claims)
        quick = message.deliver(two)
        time.sleep(1.0)
        assert not quick.done()
        held.let_go()
        assert error_of(slow) == error_of(quick) == 'PlacementUnavailable'
        only(fake, {}, store, set())
