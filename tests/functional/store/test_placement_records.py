"""Leases, and records of claims that have allocations in placement."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from oslo_db import exception as db_exception

from scheduler_service.model import HostReport, Instance
from scheduler_service.store.claims import lifecycle, placement_records
from scheduler_service.store.records import leases
from scheduler_service.store.writing import host_reports, instance_reports
from tests.support.databases import DATABASES
from tests.support.stores import (
    claim_on,
    import_two_hosts,
    stored_host,
    used_amounts,
    write_claims,
)

AMOUNTS = {'VCPU': 1, 'MEMORY_MB': 1024}


@pytest.fixture(params=DATABASES)
def store(request: Any, make_store: Any) -> Any:
    """A store on each database."""
    return make_store(request.param)


def take(store: Any, holder: str, seconds: float = 60.0) -> bool:
    """Take the lease; return whether the holder has it."""
    return store.write(lambda w: leases.take(w, 'x', holder, seconds))


def test_one_holder_has_a_lease_until_it_expires_or_is_given_up(store):
    assert take(store, 'a')
    assert take(store, 'a')
    assert not take(store, 'b')
    assert store.write(lambda w: leases.holder_of(w, 'x')) == 'a'
    store.write(lambda w: leases.give_up(w, 'x', 'b'))
    assert not take(store, 'b')
    store.write(lambda w: leases.give_up(w, 'x', 'a'))
    assert store.write(lambda w: leases.holder_of(w, 'x')) is None
    assert take(store, 'b', 0.2)
    assert not take(store, 'a')
    time.sleep(0.3)
    assert take(store, 'a')


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


def test_a_released_claim_is_undone_once(store):
    claim = claimed(store)
    assert orphans(store) == []
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    (record,) = orphans(store)
    assert record.instance_uuid == claim.consumer
    assert record.resources == '{"MEMORY_MB":1024,"VCPU":1}'
    assert store.write(lambda w: placement_records.take_orphan(w.conn, record))
    assert not store.write(
        lambda w: placement_records.take_orphan(w.conn, record)
    )


def test_a_claim_that_was_made_again_is_not_undone(store):
    claim = claimed(store)
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    (record,) = orphans(store)
    write_claims(store, claim)
    assert not store.write(
        lambda w: placement_records.take_orphan(w.conn, record)
    )
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    assert orphans(store) == [record]


def test_an_instance_on_its_host_is_not_ours_any_more(store):
    claim = claimed(store)
    store.write(
        lambda w: instance_reports.put(
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
        store.write(
            lambda w: placement_records.mark_made(
                w.conn, [claim.consumer], {host_uuid}
            )
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
            return (
                placement_records.has_unmarked(conn),
                placement_records.recorded(conn, claim.consumer, host),
            )

    assert seen() == (True, AMOUNTS)
    other = {'VCPU': 2}
    store.write(
        lambda w: placement_records.replace(
            w.conn, claim.consumer, host, other
        )
    )
    assert seen() == (True, other)
    store.write(
        lambda w: placement_records.mark_made(w.conn, [claim.consumer], {host})
    )
    assert seen() == (False, other)


def test_the_age_of_what_was_made_counts(store):
    claim = claimed(store)
    host = stored_host(store, claim.host).uuid
    store.write(
        lambda w: placement_records.mark_made(
            w.conn, [claim.consumer], {host}, age=600
        )
    )
    with store.reading() as conn:
        found = placement_records.unconfirmed(conn, 300, 10)
        assert [one.instance_uuid for one in found] == [claim.consumer]
        assert placement_records.unconfirmed(conn, 900, 10) == []


def test_new_records_are_written_at_once_or_not_at_all(store):
    claim = claim_on(import_two_hosts(store), 0)
    host = stored_host(store, claim.host).uuid
    write_claims(store, claim)
    first = (claim.consumer, host, AMOUNTS)

    def intend(*claims: Any) -> None:
        store.write(lambda w: placement_records.intend_new(w.conn, claims))

    intend(first)
    with pytest.raises(db_exception.DBDuplicateEntry):
        intend((str(uuid.uuid4()), host, AMOUNTS), first)
    # Of a host that is gone there is nothing to undo.
    intend((str(uuid.uuid4()), str(uuid.uuid4()), AMOUNTS))
    assert orphans(store) == []
    store.write(lambda w: lifecycle.release(w, [claim.consumer]))
    (record,) = orphans(store)
    assert record.resources == '{"MEMORY_MB":1024,"VCPU":1}'


def test_use_that_includes_a_claim_is_not_counted_twice(store):
    claim = claimed(store)

    def report(counted: Any) -> int:
        one = HostReport(
            claim.host, claim.node, {'memory_mb_used': 3072}, counted=counted
        )
        store.write(lambda w: host_reports.write(w, [one]))
        return used_amounts(store)['MEMORY_MB']

    assert report(None) == 3072 + 1024
    assert report([claim.consumer]) == 3072
