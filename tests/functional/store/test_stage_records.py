"""Leases, and records of what stages did for claims."""

import time
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.compute.placement import records as placement_records
from scheduler_service.engine.ports import ClaimLost, Undone
from scheduler_service.model import HostReport, Instance
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import lifecycle, stage_records
from scheduler_service.store.claims.stage_records import CallEnd
from scheduler_service.store.records import leases
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.stores import (
    HOSTS,
    claim_on,
    stored_host,
    used_amounts,
    used_memory,
    write_claims,
)
from tests.support.waiting import wait_until

STAGE = placement_records.STAGE
AMOUNTS = {'VCPU': 1, 'MEMORY_MB': 1024}
RECORD = '{"MEMORY_MB":1024,"VCPU":1}'
RECORDS = [(STAGE, RECORD)]


def test_one_holder_has_a_lease_until_it_expires_or_is_given_up(
    store, monkeypatch
):
    one, other = leases.Lease(store, 'x', 'a'), leases.Lease(store, 'x', 'b')
    assert one.take()
    assert one.take()
    assert not other.take()
    other.give_up()
    assert not other.take()
    one.give_up()
    monkeypatch.setattr(leases, 'VALID_S', 2.0)
    assert other.take()
    assert not one.take()
    wait_until(one.take)


def do(store: Any, verb: str, *args: Any, **how: Any) -> Any:
    """Do something to records, in a transaction of its own."""
    work = getattr(stage_records, verb, None)
    if work is None:
        work = getattr(placement_records, verb)
    return store.write(lambda w: work(w.conn, *args, **how))


def intent_of(store: Any, claim: Any, **other: Any) -> tuple[Any, ...]:
    """Return what a call for a claim is to make."""
    host = stored_host(store, claim.host).uuid
    return claim.consumer, host, rows.document(other or AMOUNTS)


@pytest.fixture
def claim(store: Any, snapshot: Any) -> Any:
    """A claim of 1,024 MB on the first host, with a record."""
    made = claim_on(snapshot, 0)
    write_claims(store, made)
    for _ in range(2):
        do(store, 'intend', STAGE, [intent_of(store, made)])
    return made


def release(store: Any, claim: Any) -> None:
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))


def orphans(store: Any) -> list[Any]:
    """Return the records of claims that are held no more."""
    with store.reading() as conn:
        return stage_records.orphans(conn, [STAGE], 10)


def take(store: Any, record: Any, held: bool = False) -> Any:
    """Take a record; return None where that cannot be."""
    return do(store, 'begin_undo', record, held)


def give_back(store: Any, taken: Any, there: Any, sure: bool = True) -> None:
    """Say what undoing came to."""
    result = {True: Undone.DONE, False: Undone.ABSENT}.get(there)
    do(store, 'end_undo', taken, result, sure)


def set_columns(store: Any, **values: Any) -> None:
    """Set columns of all records."""
    change = sa.update(schema.stage_records).values(values)
    store.write(lambda w: w.conn.execute(change))


def look(store: Any, record: Any, there: Any, sure: bool = True) -> None:
    """Take a record, and say what undoing came to."""
    taken = take(store, record)
    assert taken is not None
    give_back(store, taken, there, sure)


def end(intent: Any, made: bool, sure: bool, age: float = 0.0) -> CallEnd:
    return CallEnd(STAGE, [intent], made, sure, time.monotonic() - age)


def answer(
    store: Any,
    claim: Any,
    made: bool = True,
    sure: bool = True,
    age: float = 0.0,
) -> None:
    """Record that the call for a claim has ended."""
    do(store, 'end_calls', end(intent_of(store, claim), made, sure, age))


def left(store: Any, claim: Any) -> list[Any]:
    """Return the records of a claim that is held no more, due or not."""
    with store.reading() as conn:
        return stage_records.released(conn, STAGE, claim.consumer)


def test_a_released_claim_is_undone_once(store, claim):
    answer(store, claim)
    assert orphans(store) == []
    release(store, claim)
    (record,) = orphans(store)
    assert record.instance_uuid == claim.consumer
    assert record.document == RECORD
    taken = take(store, record)
    assert taken is not None
    assert take(store, record) is None
    assert orphans(store) == []
    # A call of the first of two intents may not have ended.
    give_back(store, taken, True)
    assert left(store, claim)


def test_a_record_is_forgotten_when_its_calls_have_ended(
    store, snapshot, monkeypatch
):
    claim = claim_on(snapshot, 0)
    write_claims(store, claim)
    intent = intent_of(store, claim)
    release(store, claim)

    def intend() -> Any:
        do(store, 'intend', STAGE, [intent])
        return left(store, claim)[0]

    # Answered, and undone.
    record = intend()
    answer(store, claim)
    look(store, record, True)
    assert left(store, claim) == []
    # Answered, and not there: it takes two looks.
    record = intend()
    answer(store, claim, made=False)
    look(store, record, False)
    assert left(store, claim)
    look(store, record, False)
    assert left(store, claim) == []
    # Not answered yet, or never.
    record = intend()
    for _ in range(3):
        look(store, record, False)
    answer(store, claim, made=False, sure=False)
    for there in (False, True, False):
        look(store, record, there)
    assert left(store, claim)
    # It cannot be carried out any more.
    monkeypatch.setattr(stage_records, 'CALL_ENDS_S', -1.0)
    answer(store, claim, made=False, sure=False)
    look(store, record, False)
    look(store, record, None)
    look(store, record, False)
    assert left(store, claim)
    look(store, record, False)
    assert left(store, claim) == []


def test_looks_become_rarer(store, claim):
    release(store, claim)

    def times() -> Any:
        """Return when to look again, and what time it is."""
        with store.engine.connect() as conn:
            query = sa.select(schema.stage_records.c.look_at, clock.NOW)
            return conn.execute(query).one()

    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        (record,) = left(store, claim)
        _, before = times()
        look(store, record, False)
        look_at, after = times()
        assert before + pause_s <= look_at <= after + pause_s


def test_others_undo_soon_what_a_killed_daemon_began_to(store, claim):
    answer(store, claim)
    release(store, claim)
    table = schema.stage_records.c
    for later_s in (10, 20, 40, 60, 60):
        (record,) = orphans(store)
        taken = take(store, record)
        with store.engine.connect() as conn:
            query = sa.select(table.look_at - clock.NOW)
            assert later_s - 5 < conn.execute(query).scalar_one() <= later_s
        assert orphans(store) == []
        set_columns(store, look_at=schema.stage_records.c.look_at - 60)
    # What the first of them comes to does not end what another began.
    (record,) = orphans(store)
    assert take(store, record) is not None
    give_back(store, taken, True)
    assert take(store, record) is None


def test_a_check_is_postponed_however_often_it_was(store, claim):
    release(store, claim)
    set_columns(store, looks=5000)
    (record,) = orphans(store)
    look(store, record, None)
    assert orphans(store) == []


def test_an_undo_that_ended_is_repeated_when_the_clock_was_set_back(
    store, claim
):
    answer(store, claim)
    release(store, claim)
    (record,) = orphans(store)
    assert take(store, record) is not None
    set_columns(store, look_at=schema.stage_records.c.look_at + 3600)
    assert orphans(store) == [record._replace(looks=1)]
    assert take(store, record) is not None
    assert orphans(store) == []


def test_nobody_claims_while_a_claim_is_undone(store, snapshot, claim):
    answer(store, claim)
    release(store, claim)
    (record,) = orphans(store)
    taken = take(store, record)
    hosts = [stored_host(store, name).uuid for name in HOSTS[:2]]

    again = claim_on(snapshot, 1, consumer=claim.consumer, records=RECORDS)

    def refuses() -> bool:
        """Whether it is neither claimed nor recorded anew."""
        for host in hosts:
            with pytest.raises(stage_records.BeingUndone):
                do(store, 'intend', STAGE, [(claim.consumer, host, RECORD)])
        with pytest.raises(ClaimLost):
            write_claims(store, again)
        return used_memory(store) == [0, 0]

    assert refuses()
    # A call without an answer may undo what is claimed after it.
    give_back(store, taken, None, sure=False)
    assert refuses()
    look(store, record, True)
    assert refuses()
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.stage_records).values(undone_until=1.0))
    write_claims(store, again)
    assert used_memory(store) == [0, 1024]


def test_other_amounts_wait_until_the_earlier_are_undone(store, claim):
    with pytest.raises(stage_records.BeingUndone):
        do(store, 'intend', STAGE, [intent_of(store, claim, VCPU=2)])


def test_what_is_made_is_recorded_again_when_its_record_is_gone(store, claim):
    release(store, claim)
    do(store, 'take_over', [claim.consumer])
    answer(store, claim, made=False)
    assert left(store, claim) == []
    answer(store, claim)
    (record,) = left(store, claim)
    assert record.document == RECORD


def test_what_is_made_is_the_compute_services_when_its_instance_is_there(
    store, claim
):
    here = Instance(uuid=claim.consumer, host=claim.host)
    store.write(lambda w: instance_rows.report(w, [here]))
    answer(store, claim)
    of_claim = intent_of(store, claim)[:2]
    assert do(store, 'recorded', STAGE, *of_claim) is None


def test_records_of_calls_under_way_stay_when_others_are_forgotten(
    store, claim
):
    release(store, claim)
    do(store, 'take_over', [claim.consumer], True)
    assert left(store, claim)
    with store.engine.begin() as conn:
        conn.execute(
            sa.update(schema.stage_records).values(
                asked_at=None, call_until=None
            )
        )
    do(store, 'take_over', [claim.consumer], True)
    assert left(store, claim) == []


def test_a_claim_that_was_made_again_is_not_undone(store, claim):
    release(store, claim)
    (record,) = orphans(store)
    write_claims(store, claim)
    assert take(store, record) is None
    assert take(store, record, held=True) is not None


def test_an_instance_on_its_host_is_not_ours_any_more(store, claim):
    here = Instance(uuid=claim.consumer, host=claim.host)
    store.write(lambda w: instance_rows.report(w, [here]))
    release(store, claim)
    assert orphans(store) == []


def test_claims_that_were_made_long_ago_are_found(store, claim):

    def unconfirmed(seconds: float, verb: str = 'unconfirmed') -> list[str]:
        found = do(store, verb, seconds, 10)
        return [one.instance_uuid for one in found]

    def unmarked(seconds: float) -> list[str]:
        return unconfirmed(seconds, 'unmarked')

    assert unconfirmed(-60) == []
    assert unmarked(-60) == [claim.consumer]
    assert unmarked(60) == []
    elsewhere = (claim.consumer, str(uuid.uuid4()), RECORD)
    do(store, 'end_calls', end(elsewhere, made=True, sure=True))
    assert unconfirmed(-60) == []
    answer(store, claim)
    assert unconfirmed(-60) == [claim.consumer]
    assert unconfirmed(60) == []
    assert unmarked(-60) == []


def test_a_record_is_replaced_and_seen_until_it_is_marked(store, claim):
    host = stored_host(store, claim.host).uuid

    def seen() -> tuple[bool, Any]:
        with store.reading() as conn:
            record = stage_records.recorded(conn, STAGE, claim.consumer, host)
            assert record is not None
            return placement_records.has_unmarked(conn), record.content

    assert seen() == (True, AMOUNTS)
    other = {'VCPU': 2}
    do(store, 'replace', claim.consumer, host, other)
    assert seen() == (True, other)
    answer(store, claim)
    assert seen() == (False, other)


def test_the_age_of_what_was_made_counts(store, claim):
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.stage_records).values(asked_at=1.0))
    answer(store, claim, age=600)
    (found,) = do(store, 'unconfirmed', 300, 10)
    assert found.instance_uuid == claim.consumer
    assert do(store, 'unconfirmed', 900, 10) == []


def test_intents_are_recorded_with_the_claims_or_not_at_all(store, snapshot):
    first, other = (claim_on(snapshot, row, records=RECORDS) for row in (0, 1))
    write_claims(store, first, other)
    write_claims(store, claim_on(snapshot, 0, records=RECORDS))
    write_claims(store, claim_on(snapshot, 0))
    assert do(store, 'has_unmarked')
    assert orphans(store) == []
    release(store, first)
    (record,) = orphans(store)
    assert (record.instance_uuid, record.document) == (first.consumer, RECORD)
    # The record of the earlier claim is there yet: nothing is claimed.
    used = used_memory(store)
    with pytest.raises(ClaimLost):
        write_claims(store, claim_on(snapshot, 1, records=RECORDS), first)
    assert used_memory(store) == used


def test_use_that_includes_a_claim_is_not_counted_twice(store, claim):

    def report(counted: Any) -> int:
        one = HostReport(
            claim.host, claim.node, {'memory_mb_used': 3072}, counted=counted
        )
        store.write(lambda w: host_rows.report(w, [one]))
        return used_amounts(store)['MEMORY_MB']

    assert report(None) == 3072 + 1024
    assert report([claim.consumer]) == 3072
