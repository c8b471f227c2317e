"""An audit compares what is used with what is allocated."""

from __future__ import annotations

import json
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


def test_larger_of_two_claims_on_a_host_gets_back_its_allocations(store):
    snapshot, instance = import_two_hosts(store), str(uuid.uuid4())
    for size, how in ((512, {}), (768, {'move': True, 'may_stay': True})):
        amounts = {'MEMORY_MB': size}
        write_claims(store, claim_on(
            snapshot, 0, consumer=instance, amounts=amounts,
            placement=json.dumps({'amounts': amounts}), **how,
        ))  # fmt: skip
    store.write(
        lambda w: w.conn.execute(sa.delete(schema.allocations)) and None
    )
    store.write(audit.fix)
    assert audit_findings(store) == []
    assert used_memory(store) == [768, 0]


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


def group_findings(store) -> list[tuple[Any, ...]]:
    with store.reading() as conn:
        found = audit.audit(conn, {}).findings
    return [
        (each.kind, each.server_group, each.host, each.consumer)
        for each in found
    ]


def test_policies_of_server_groups_that_do_not_hold_are_found(store):
    snapshot = import_two_hosts(store)
    pair, alone, together = (str(uuid.uuid4()) for _ in range(3))
    import_inventory(store, {'server_groups': [
        {'uuid': pair, 'rules': {'max_server_per_host': 2}},
        {'uuid': alone},
        {'uuid': together, 'policy': 'affinity'},
        {'uuid': str(uuid.uuid4()), 'policy': 'soft-affinity'},
    ]})  # fmt: skip
    first, second = snapshot.hosts.host_at(0), snapshot.hosts.host_at(1)
    small = {'MEMORY_MB': 1}

    def claim(row, group, **how):
        made = claim_on(snapshot, row, group=group, amounts=small, **how)
        write_claims(store, made)
        return made

    def move(made, row):
        moving = claim_on(snapshot, row, amounts=small, move=True)
        write_claims(
            store, msgspec.structs.replace(moving, consumer=made.consumer)
        )

    for group in (pair, pair, alone, together):
        claim(0, group)
    assert group_findings(store) == []
    mover = claim(1, alone)
    move(mover, 0)
    assert group_findings(store) == [('policy', alone, first, None)]
    claim(0, pair)
    claim(1, pair)
    stray = claim(1, together)
    expected = [
        *(('policy', each, first, None) for each in sorted([alone, pair])),
        ('policy', together, None, None),
    ]
    assert group_findings(store) == expected
    move(stray, 0)
    assert group_findings(store) == expected[:2]
    store.write(lambda w: lifecycle.release(w, [mover.consumer]))
    assert group_findings(store) == [('policy', pair, first, None)]
    assert second not in str(group_findings(store))


def test_placed_instances_without_their_server_groups_are_found(store):
    snapshot = import_two_hosts(store)
    stored, gone = sorted(str(uuid.uuid4()) for _ in range(2))
    import_inventory(
        store, {'server_groups': [{'uuid': stored}, {'uuid': gone}]}
    )
    host = snapshot.hosts.host_at(0)
    lost, member, other = (
        claim_on(
            snapshot, 0, group=group, amounts={'MEMORY_MB': 1},
            placement=f'{{"instance_uuid":"x","group":"{group}"}}',
        )
        for group in (stored, gone, gone)
    )  # fmt: skip
    write_claims(store, lost, member, other)
    assert {each[0] for each in group_findings(store)} == {'policy'}

    def spoil(writer: Any) -> None:
        members, groups = schema.server_group_members, schema.server_groups
        for uuid_ in (lost.consumer, other.consumer):
            writer.conn.execute(
                sa.delete(members).where(members.c.instance_uuid == uuid_)
            )
        writer.conn.execute(sa.delete(groups).where(groups.c.uuid == gone))

    store.write(spoil)
    assert group_findings(store) == [
        ('membership', gone, host, member.consumer),
        ('membership', stored, host, lost.consumer),
    ]


def test_records_of_a_stage_that_is_not_configured_are_named(store):
    import_two_hosts(store)
    records = [('complete', '{}'), ('gone', '{}')]
    snapshot = load_snapshot(store)
    for _ in range(2):
        write_claims(store, claim_on(snapshot, 0, records=records))
    with store.reading() as conn:
        named = audit.audit(conn, {}, {'complete'}).findings
        all_known = audit.audit(conn, {}, {'complete', 'gone'}).findings
    assert [(one.kind, one.text) for one in named if one.kind == 'stage'] == [
        ('stage', '2 records of the stage gone, which is not configured: '
                  'what it did is not undone'),
    ]  # fmt: skip
    assert 'stage' not in {one.kind for one in all_known}
