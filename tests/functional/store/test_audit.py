"""An audit compares what is used with what is allocated."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries, lifecycle
from scheduler_service.store.records import audit
from tests.support.stores import (
    FULL_INVENTORY,
    audit_findings,
    claim_on,
    import_inventory,
    import_two_hosts,
    load_snapshot,
    new_claim,
    used_amounts,
    used_memory,
    write_claims,
)

pytestmark = pytest.mark.db


def test_every_kind_of_finding_is_reported_and_fixed(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    write_claims(store, new_claim(snapshot, 512))
    assert audit_findings(store) == []
    host_id = int(snapshot.hosts.ids[0])
    stranger = str(uuid.uuid4())

    def spoil(writer: Any) -> None:
        conn = writer.conn
        table = schema.inventories
        conn.execute(
            sa.update(table)
            .where(table.c.host_id == host_id,
                   table.c.resource_class == 'MEMORY_MB')
            .values(used=99_999)
        )  # fmt: skip
        for kind, owner in (('VCPU', stranger), ('GONE', stranger)):
            conn.execute(schema.allocations.insert(), {
                'consumer_uuid': owner, 'host_id': host_id,
                'resource_class': kind, 'amount': 1,
            })  # fmt: skip

    store.write(spoil)
    found = audit_findings(store)
    assert sorted({one.split(':')[0] for one in found}) == [
        'orphaned', 'overcommitted', 'unclaimed', 'used',
    ]  # fmt: skip
    store.write(audit.fix)
    assert audit_findings(store) == []
    assert used_amounts(store)['MEMORY_MB'] == 1536


def test_claims_get_back_the_allocations_that_they_promised(store):
    """Whether or not their use was given back: it never gets less than that.

    One is a claim, the other one a move.
    """
    snapshot = import_two_hosts(store)
    promise = '{"instance_uuid": "x", "amounts": {"MEMORY_MB": 1024}}'
    amounts = {'MEMORY_MB': 1024}
    one = claim_on(snapshot, 0, placement=promise, amounts=amounts)
    write_claims(store, one)
    write_claims(store, msgspec.structs.replace(
        claim_on(snapshot, 1, placement=promise, amounts=amounts, move=True),
        consumer=one.consumer,
    ))  # fmt: skip

    def lose(writer: Any) -> None:
        writer.conn.execute(sa.delete(schema.allocations))
        table = schema.inventories
        first = table.c.host_id == one.host_id
        writer.conn.execute(sa.update(table).where(first).values(used=0))

    store.write(lose)
    found = audit_findings(store)
    assert [each.partition(':')[0] for each in found] == [
        'used', 'unallocated', 'unallocated',
    ]  # fmt: skip
    store.write(audit.fix)
    assert audit_findings(store) == []
    assert used_memory(store) == [1024, 1024]


def test_use_stays_where_nobody_knows_what_a_claim_was_promised(store):
    one = claim_on(import_two_hosts(store), 0)
    write_claims(store, one)
    store.write(
        lambda w: w.conn.execute(sa.delete(schema.allocations)) and None
    )
    store.write(audit.fix)
    assert used_memory(store) == [1024, 0]
    found = {each.partition(':')[0] for each in audit_findings(store)}
    assert found == {'used', 'unallocated'}
    store.write(lambda w: lifecycle.release(w, [one.consumer]))
    store.write(audit.fix)
    assert used_memory(store) == [0, 0]
    assert audit_findings(store) == []


def test_allocations_are_released_where_their_instance_is_elsewhere(store):
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0)
    write_claims(store, one)

    def spoil(writer: Any) -> None:
        writer.conn.execute(
            schema.allocations.insert(),
            {'consumer_uuid': one.consumer, 'host_id': one.host_id + 1,
             'resource_class': 'MEMORY_MB', 'amount': 7},
        )  # fmt: skip

    store.write(spoil)
    found = audit_findings(store)
    assert {each.partition(':')[0] for each in found} == {'unclaimed', 'used'}
    store.write(audit.fix)
    assert audit_findings(store) == []
    assert used_memory(store) == [1024, 0]


def test_claim_not_found_is_raised_when_there_is_none(store):
    with (
        store.reading() as conn,
        pytest.raises(errors.ClaimNotFound),
    ):
        claim_queries.show(conn, str(uuid.uuid4()))


def test_instances_and_claims_that_do_not_match_are_listed(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    claim = new_claim(snapshot, 512)
    write_claims(store, claim)

    def unmatched():
        with store.reading() as conn:
            found = audit.audit(conn, {}).unmatched
        return [(each.kind, each.consumer) for each in found]

    (running,) = {uuid for kind, uuid in unmatched() if kind == 'running'}
    assert unmatched() == [('running', running)]
    store.write(
        lambda writer: writer.conn.execute(
            sa.update(schema.instances)
            .where(schema.instances.c.uuid == claim.consumer)
            .values(created_at=schema.instances.c.created_at - 3700)
        )
    )
    assert unmatched() == [
        ('running', running), ('unreported', claim.consumer)
    ]  # fmt: skip
    assert audit_findings(store) == []
