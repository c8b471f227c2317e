"""Leases, and records of claims that have allocations in placement."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.engine.ports import ClaimLost
from scheduler_service.model import HostReport, Instance
from scheduler_service.store import clock, schema
from scheduler_service.store.claims import lifecycle, placement_records
from scheduler_service.store.records import leases
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.databases import DATABASES
from tests.support.stores import (
    HOSTS,
    claim_on,
    import_two_hosts,
    load_snapshot,
    stored_host,
    used_amounts,
    used_memory,
    write_claims,
)

AMOUNTS = {'VCPU': 1, 'MEMORY_MB': 1024}
RECORD = '{"MEMORY_MB":1024,"VCPU":1}'


@pytest.fixture(params=DATABASES)
def store(request: Any, make_store: Any) -> Any:
    """A store on each database."""
    return make_store(request.param)


def take_lease(store: Any, holder: str, seconds: float = 60.0) -> bool:
    """Take the lease; return whether the holder has it."""
    return store.write(lambda w: leases.take(w, 'x', holder, seconds))


def test_one_holder_has_a_lease_until_it_expires_or_is_given_up(store):
    assert take_lease(store, 'a')
    assert take_lease(store, 'a')
    assert not take_lease(store, 'b')
    assert store.write(lambda w: leases.holder_of(w, 'x')) == 'a'
    store.write(lambda w: leases.give_up(w, 'x', 'b'))
    assert not take_lease(store, 'b')
    store.write(lambda w: leases.give_up(w, 'x', 'a'))
    assert store.write(lambda w: leases.holder_of(w, 'x')) is None
    assert take_lease(store, 'b', 0.2)
    assert not take_lease(store, 'a')
    time.sleep(0.3)
    assert take_lease(store, 'a')


def claimed(store: Any) -> Any:
    """Claim 1,024 MB on the first host, with a record; return the claim."""
    claim = claim_on(import_two_hosts(store), 0)
    write_claims(store, claim)
    host = stored_host(store, claim.host).uuid
    for _ in range(2):
        store.write(
            lambda w: placement_records.intend(
                w.conn, [(claim.consumer, host, AMOUNTS)]
            )
        )
    return claim


def orphans(store: Any) -> list[Any]:
    """Return the records of claims that are held no more."""
    with store.reading() as conn:
        return placement_records.orphans(conn, 10)


def take(store: Any, record: Any, held: bool = False) -> Any:
    """Take a record; return None where that cannot be."""
    return store.write(lambda w: placement_records.take(w.conn, record, held))


def give_back(store: Any, taken: Any, there: Any, sure: bool = True) -> None:
    """Say what undoing came to."""
    store.write(
        lambda w: placement_records.give_back(w.conn, taken, there, sure)
    )


def look(store: Any, record: Any, there: Any, sure: bool = True) -> None:
    """Take a record, and say what undoing came to."""
    taken = take(store, record)
    assert taken is not None
    give_back(store, taken, there, sure)


def answer(store: Any, claim: Any, made: bool = True, **how: Any) -> None:
    """Record that the call for a claim has ended."""
    host = stored_host(store, claim.host).uuid
    intent = (claim.consumer, host, AMOUNTS)
    store.write(
        lambda w: placement_records.answered(w.conn, [intent], made, **how)
    )


def left(store: Any, claim: Any) -> list[Any]:
    """Return the records of a claim that is held no more, due or not."""
    with store.reading() as conn:
        return placement_records.left(conn, claim.consumer)


def test_a_released_claim_is_undone_once(store):
    claim = claimed(store)
    answer(store, claim)
    assert orphans(store) == []
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    (record,) = orphans(store)
    assert record.instance_uuid == claim.consumer
    assert record.resources == '{"MEMORY_MB":1024,"VCPU":1}'
    taken = take(store, record)
    assert taken is not None
    assert take(store, record) is None
    assert orphans(store) == []
    # A call of the first of two intents may not have ended.
    give_back(store, taken, True)
    assert left(store, claim)


def test_a_record_is_forgotten_when_its_calls_have_ended(store, monkeypatch):
    claim = claim_on(import_two_hosts(store), 0)
    write_claims(store, claim)
    host = stored_host(store, claim.host).uuid
    intent = (claim.consumer, host, AMOUNTS)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))

    def intend() -> Any:
        store.write(lambda w: placement_records.intend(w.conn, [intent]))
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
    monkeypatch.setattr(placement_records, 'CALL_ENDS_S', -1.0)
    answer(store, claim, made=False, sure=False)
    look(store, record, False)
    look(store, record, None)
    look(store, record, False)
    assert left(store, claim)
    look(store, record, False)
    assert left(store, claim) == []


def test_looks_become_rarer(store):
    claim = claimed(store)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))

    def pause() -> float:
        (record,) = left(store, claim)
        look(store, record, False)
        with store.engine.connect() as conn:
            at, now = conn.execute(
                sa.select(schema.placement_claims.c.look_at, clock.NOW)
            ).one()
        return at - now

    pauses = [pause() for _ in range(8)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=0.9)


def test_nobody_claims_while_a_claim_is_undone(store):
    claim = claimed(store)
    answer(store, claim)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    (record,) = orphans(store)
    taken = take(store, record)
    hosts = [stored_host(store, name).uuid for name in HOSTS[:2]]
    again = claim_on(
        load_snapshot(store), 1, consumer=claim.consumer, intent=RECORD
    )

    def refuses() -> bool:
        """Whether neither is claimed nor recorded, and nothing written."""
        for host in hosts:
            intent = [(claim.consumer, host, AMOUNTS)]
            with pytest.raises(placement_records.BeingUndone):
                store.write(lambda w, i=intent: placement_records.intend(
                    w.conn, i
                ))  # fmt: skip
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
        conn.execute(
            sa.update(schema.placement_claims).values(undone_until=1.0)
        )
    write_claims(store, again)
    assert used_memory(store) == [0, 1024]


def test_other_amounts_wait_until_the_earlier_are_undone(store):
    claim = claimed(store)
    host = stored_host(store, claim.host).uuid
    other = (claim.consumer, host, {'VCPU': 2})
    with pytest.raises(placement_records.BeingUndone):
        store.write(lambda w: placement_records.intend(w.conn, [other]))


def test_what_is_made_is_recorded_again_when_its_record_is_gone(store):
    claim = claimed(store)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    store.write(lambda w: placement_records.forget(w.conn, [claim.consumer]))
    answer(store, claim, made=False)
    assert left(store, claim) == []
    answer(store, claim)
    (record,) = left(store, claim)
    assert record.resources == '{"MEMORY_MB":1024,"VCPU":1}'


def test_what_is_made_is_the_compute_services_when_its_instance_is_there(
    store,
):
    claim = claimed(store)
    store.write(
        lambda w: instance_rows.report(
            w, [Instance(uuid=claim.consumer, host=claim.host)]
        )
    )
    answer(store, claim)
    with store.reading() as conn:
        host = stored_host(store, claim.host).uuid
        assert placement_records.recorded(conn, claim.consumer, host) is None


def test_records_of_calls_under_way_stay_when_others_are_forgotten(store):
    claim = claimed(store)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))

    def forget() -> None:
        store.write(
            lambda w: placement_records.forget(w.conn, [claim.consumer], True)
        )

    forget()
    assert left(store, claim)
    with store.engine.begin() as conn:
        conn.execute(
            sa.update(schema.placement_claims).values(
                asked_at=None, call_until=None
            )
        )
    forget()
    assert left(store, claim) == []


def test_a_claim_that_was_made_again_is_not_undone(store):
    claim = claimed(store)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    (record,) = orphans(store)
    write_claims(store, claim)
    assert take(store, record) is None
    assert take(store, record, held=True) is not None


def test_an_instance_on_its_host_is_not_ours_any_more(store):
    claim = claimed(store)
    store.write(
        lambda w: instance_rows.report(
            w, [Instance(uuid=claim.consumer, host=claim.host)]
        )
    )
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    assert orphans(store) == []


def test_claims_that_were_made_long_ago_are_found(store):
    claim = claimed(store)

    def unconfirmed(seconds: float) -> list[str]:
        with store.reading() as conn:
            found = placement_records.unconfirmed(conn, seconds, 10)
        return [one.instance_uuid for one in found]

    def unmarked(seconds: float) -> list[str]:
        with store.reading() as conn:
            found = placement_records.unmarked(conn, seconds, 10)
        return [one.instance_uuid for one in found]

    def mark(host_uuid: str) -> None:
        intent = (claim.consumer, host_uuid, AMOUNTS)
        store.write(
            lambda w: placement_records.answered(w.conn, [intent], made=True)
        )

    assert unconfirmed(-60) == []
    assert unmarked(-60) == [claim.consumer]
    assert unmarked(60) == []
    mark(str(uuid.uuid4()))
    assert unconfirmed(-60) == []
    mark(stored_host(store, claim.host).uuid)
    assert unconfirmed(-60) == [claim.consumer]
    assert unconfirmed(60) == []
    assert unmarked(-60) == []


def test_a_record_is_replaced_and_seen_until_it_is_marked(store):
    claim = claimed(store)
    host = stored_host(store, claim.host).uuid

    def seen() -> tuple[bool, Any]:
        with store.reading() as conn:
            record = placement_records.recorded(conn, claim.consumer, host)
            assert record is not None
            return placement_records.has_unmarked(conn), record.document

    assert seen() == (True, AMOUNTS)
    other = {'VCPU': 2}
    store.write(
        lambda w: placement_records.replace(
            w.conn, claim.consumer, host, other
        )
    )
    assert seen() == (True, other)
    answer(store, claim)
    assert seen() == (False, other)


def test_the_age_of_what_was_made_counts(store):
    claim = claimed(store)
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.placement_claims).values(asked_at=1.0))
    answer(store, claim, age=600)
    with store.reading() as conn:
        found = placement_records.unconfirmed(conn, 300, 10)
        assert [one.instance_uuid for one in found] == [claim.consumer]
        assert placement_records.unconfirmed(conn, 900, 10) == []


def test_intents_are_recorded_with_the_claims_or_not_at_all(store):
    snapshot = import_two_hosts(store)
    several = [claim_on(snapshot, row, intent=RECORD) for row in (0, 1)]
    write_claims(store, *several)
    write_claims(store, claim_on(snapshot, 0, intent=RECORD))
    write_claims(store, claim_on(snapshot, 0))
    with store.reading() as conn:
        assert placement_records.has_unmarked(conn)
    assert orphans(store) == []
    first = several[0]
    store.write(lambda w: lifecycle.release(w, [first.consumer]))
    (record,) = orphans(store)
    assert (record.instance_uuid, record.resources) == (first.consumer, RECORD)
    # The record of the earlier claim is there yet: nothing is claimed.
    used = used_memory(store)
    with pytest.raises(ClaimLost):
        write_claims(store, claim_on(snapshot, 1, intent=RECORD), first)
    assert used_memory(store) == used


def test_use_that_includes_a_claim_is_not_counted_twice(store):
    claim = claimed(store)

    def report(counted: Any) -> int:
        one = HostReport(
            claim.host, claim.node, {'memory_mb_used': 3072}, counted=counted
        )
        store.write(lambda w: host_rows.report(w, [one]))
        return used_amounts(store)['MEMORY_MB']

    assert report(None) == 3072 + 1024
    assert report([claim.consumer]) == 3072
