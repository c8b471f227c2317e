"""Batches of claims take what still fits, on every database."""

from __future__ import annotations

import contextlib
import threading
import uuid

import msgspec
import pytest
import sqlalchemy as sa

from scheduler_service.columns.topology import least_number
from scheduler_service.model import Instance, ServerGroup
from scheduler_service.store import claims, schema
from scheduler_service.store.claims import (
    claim_queries,
    lifecycle,
    outcomes,
)
from scheduler_service.store.connection import Writer
from scheduler_service.store.writing import instances as instance_rows
from scheduler_service.store.writing import server_groups
from tests.support.stores import (
    DEFAULT_RATIOS,
    FULL_INVENTORY,
    INSTANCE,
    claim_on,
    import_inventory,
    load_snapshot,
    move_of,
    new_claim,
    sent,
    used_amounts,
    write_claims,
)

pytestmark = pytest.mark.db


def test_claim_is_lost_when_the_host_is_full(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    write_claims(store, new_claim(snapshot, 3072))
    with pytest.raises(claims.ClaimLost):
        write_claims(store, new_claim(snapshot, 1))
    assert used_amounts(store)['MEMORY_MB'] == 4096


def test_one_delivery_of_a_request_claims_when_two_daemons_have_it(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    consumer = str(uuid.uuid4())
    delivered = {'key': 'm/0', 'consumer': consumer}
    write_claims(store, new_claim(snapshot, 100, **delivered))
    before = used_amounts(store)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, new_claim(snapshot, 100, **delivered))
    assert used_amounts(store) == before


def test_a_redelivered_request_claims_nothing_when_its_copy_is_refused(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    refusal = outcomes.RecordedOutcome('m/0', outcomes.REFUSED, '{}')
    store.write(lambda w: outcomes.add(w.conn, [refusal]))
    with pytest.raises(claims.ClaimLost):
        write_claims(store, new_claim(snapshot, 100, key='m/0'))
    write_claims(store, new_claim(snapshot, 100, key='m/1'))


def test_a_claim_is_compared_with_releases_that_concern_it(store, snapshot):
    """A move with those of moves, too."""
    placed = new_claim(snapshot, 100)
    write_claims(store, placed)

    def record(uuid, kind) -> int:
        asked = {uuid: outcomes.ReleaseRequest()}

        def work(writer) -> int:
            outcomes.record_releases(writer, asked, kind)
            return writer.revision

        return store.write(work)

    consumer = str(uuid.uuid4())
    for uuid_ in (placed.consumer, consumer):
        before = record(uuid_, outcomes.MOVE) - 1
    how = {'consumer': consumer, 'releases_seen': before}
    made = new_claim(snapshot, 100, **how)
    revision = record(consumer, outcomes.ALL)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, made)
    write_claims(store, msgspec.structs.replace(made, releases_seen=revision))
    moved = move_of(snapshot, placed.consumer, releases_seen=before - 1)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, moved)
    write_claims(store, msgspec.structs.replace(moved, releases_seen=before))
    with store.reading() as conn:
        (release,) = [
            one
            for one in outcomes.releases(conn, [consumer], None)
            if one.kind == outcomes.ALL
        ]
    assert (release.instance, release.revision) == (consumer, revision)
    assert 0.0 <= release.age < 60.0


def test_nothing_is_written_when_one_claim_of_a_batch_is_lost(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    before = used_amounts(store)
    with pytest.raises(claims.ClaimLost):
        write_claims(
            store, new_claim(snapshot, 2000), new_claim(snapshot, 2000)
        )
    assert used_amounts(store) == before
    with store.reading() as conn:
        held = conn.execute(sa.select(schema.allocations)).all()
    assert held == []


def test_claim_is_made_when_its_ratio_is_the_largest_there_is(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    # The ratio of an aggregate that an older release stored as infinity.
    ratio = least_number(['inf'], 1.0, float)
    wide = new_claim(snapshot, 5000, ratios={'MEMORY_MB': ratio})
    write_claims(store, wide)
    assert used_amounts(store)['MEMORY_MB'] == 6024


def test_claims_are_summed_when_they_name_one_host(store):
    import_inventory(store, {'hosts': [
        {'host': 'compute-1', 'vcpus': 4, 'memory_mb': 100,
         'local_gb': 10},
    ]})  # fmt: skip
    snapshot = load_snapshot(store)
    wide = {'MEMORY_MB': 2.0}
    unlike = [
        {'amounts': {'MEMORY_MB': 60, 'VCPU': 1}, 'ratios': wide},
        {'amounts': {'VCPU': 1, 'DISK_GB': 4}},
        {'amounts': {'MEMORY_MB': 140}, 'ratios': wide},
        {'amounts': {'VCPU': 1, 'DISK_GB': 4}},
        {'amounts': {}, 'project_id': 'p'},
    ]
    beyond = {'amounts': {'DISK_GB': 3}}
    with pytest.raises(claims.ClaimLost):
        write_claims(store, *(new_claim(snapshot, 0, **how)
                      for how in (*unlike, beyond)))  # fmt: skip
    batch = [new_claim(snapshot, 0, **how) for how in unlike]
    write_claims(store, *batch)
    assert used_amounts(store) == {
        'DISK_GB': 8,
        'MEMORY_MB': 200,
        'VCPU': 3,
    }
    with store.reading() as conn:
        held = conn.execute(sa.select(schema.allocations)).all()
        there = conn.execute(sa.select(schema.instances)).all()
    assert {(row.consumer_uuid, row.resource_class): row.amount
            for row in held} == {
        (one.consumer, name): amount
        for one in batch for name, amount in one.amounts.items()
    }  # fmt: skip
    columns = ('host', 'node', 'project_id', 'request_id', 'document',
               'placement')  # fmt: skip
    for row in there:
        one = next(c for c in batch if c.consumer == row.uuid)
        assert row.state == 'claimed'
        assert [getattr(row, name) for name in columns] == [
            getattr(one, name) for name in columns
        ]


def test_a_claim_is_recorded_when_it_takes_nothing(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    first, second, third = (
        new_claim(snapshot, 0, amounts={}) for _ in range(3)
    )
    write_claims(store, first)
    write_claims(store, second, third)
    with store.reading() as conn:
        held = claims.placements(
            conn, [first.consumer, second.consumer, third.consumer]
        )
    assert len(held) == 3
    with pytest.raises(claims.ClaimLost):
        write_claims(store, first)


def test_claim_is_lost_when_its_consumer_has_one(store):
    import_inventory(store, FULL_INVENTORY)
    first = new_claim(load_snapshot(store), 100)
    write_claims(store, first)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, first)
    assert used_amounts(store)['MEMORY_MB'] == 1124
    with store.reading() as conn:
        found = claims.placements(conn, [first.consumer, INSTANCE])
    assert found == {first.consumer: {'instance_uuid': 'x'}}


@pytest.mark.parametrize('is_present', [False, True])
def test_claim_is_lost_when_its_group_came_after_the_hosts_were_read(
    store, is_present
):
    """Nobody checked then whose group it is."""
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    group = ServerGroup(uuid=str(uuid.uuid4()), project_id='p')
    how = {'group': group.uuid, 'is_present': is_present}
    if is_present:
        how['consumer'] = INSTANCE
    # A group that does not exist has no members.
    write_claims(store, new_claim(snapshot, 100, **how, group_owner=None))
    store.write(lambda writer: server_groups.create(writer, group))
    how.update(consumer=str(uuid.uuid4()))
    if is_present:
        reported = Instance(uuid=how['consumer'], host='compute-1')
        store.write(lambda w: instance_rows.report(w, [reported]))
    before = used_amounts(store)
    late = new_claim(snapshot, 100, **how, group_owner=None)
    other = new_claim(snapshot, 100)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, other, late)
    assert used_amounts(store) == before
    stranger = new_claim(snapshot, 100, **how, group_owner='q')
    with pytest.raises(claims.ClaimLost):
        write_claims(store, other, stranger)
    mine = new_claim(snapshot, 100, **how, group_owner='p')
    write_claims(store, other, mine)
    with store.reading() as conn:
        member = schema.server_group_members.c
        members = conn.execute(
            sa.select(member.instance_uuid).where(
                member.group_uuid == group.uuid
            )
        )
        assert members.scalars().all() == [how['consumer']]


def test_claim_is_lost_when_a_known_instance_was_claimed_meanwhile(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    # Two daemons know the instance as reported, and both claim for it.
    write_claims(
        store, new_claim(snapshot, 1, consumer=INSTANCE, is_present=True)
    )
    second = new_claim(
        snapshot, 0, consumer=INSTANCE, is_present=True, placement='{}',
        host_id=int(snapshot.hosts.ids[1]), host='Compute-1',
        amounts={'VCPU': 1},
    )  # fmt: skip
    with pytest.raises(claims.ClaimLost):
        write_claims(store, second)
    with store.reading() as conn:
        found = claims.placements(conn, [INSTANCE])
    assert found == {INSTANCE: {'instance_uuid': 'x'}}
    assert used_amounts(store)['MEMORY_MB'] == 1025


def test_both_hosts_are_read_again_when_a_known_instance_is_claimed(store):
    """It was reported by the one, and is claimed for the other."""
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    (reported,) = {one['host'] for one in FULL_INVENTORY['instances']}
    rows = {
        host: int(snapshot.hosts.ids[snapshot.hosts.rows_of_host(host)[0]])
        for host in (reported, 'Compute-1')
    }
    assert len(rows) == 2
    claim = new_claim(
        snapshot, 1, consumer=INSTANCE, is_present=True,
        host_id=rows['Compute-1'], host='Compute-1', amounts={'VCPU': 1},
    )  # fmt: skip

    def work(writer):
        claims.ClaimBatch(store, [claim], DEFAULT_RATIOS).make(writer)
        return set(writer.touched.load)

    assert store.write(work) == {*rows.values()}


def test_claim_replaces_the_row_when_the_instance_is_known(store):
    import_inventory(store, FULL_INVENTORY)
    write_claims(
        store,
        new_claim(load_snapshot(store), 1, consumer=INSTANCE, is_present=True),
    )
    placed = load_snapshot(store).hosts.instances.get(INSTANCE)
    assert placed is not None
    assert placed.claimed


def test_measured_disk_bounds_claims_and_follows_them(store):
    import_inventory(store, {'hosts': [
        {'host': 'compute-1', 'local_gb': 100, 'disk_available_least': 5},
    ]})  # fmt: skip
    take = {'amounts': {'DISK_GB': 3}}
    snapshot = load_snapshot(store)
    first = new_claim(snapshot, 0, **take)
    write_claims(store, first)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, new_claim(snapshot, 0, **take))
    store.write(lambda writer: lifecycle.release(writer, [first.consumer]))
    write_claims(store, new_claim(snapshot, 0, **take))


def test_release_gives_back_once_when_repeated(store):
    import_inventory(store, FULL_INVENTORY)
    before = used_amounts(store)
    one = new_claim(load_snapshot(store), 512)
    write_claims(store, one)

    def give(writer: Writer) -> list[str]:
        return lifecycle.release(writer, [one.consumer, INSTANCE])

    assert store.write(give) == [one.consumer]
    assert store.write(give) == []
    assert used_amounts(store) == before


@pytest.mark.parametrize(
    ('policy', 'rules', 'second', 'third'),
    [
        ('anti-affinity', {}, False, False),
        ('anti-affinity', {'max_server_per_host': 2}, True, False),
        ('affinity', {}, True, True),
        ('soft-anti-affinity', {}, True, True),
    ],
)
def test_group_policies_hold_when_members_are_claimed(
    store, policy, rules, second, third
):
    group = str(uuid.uuid4())
    import_inventory(store, {**FULL_INVENTORY, 'server_groups': [
        {'uuid': group, 'policy': policy, 'rules': rules}]})  # fmt: skip
    snapshot = load_snapshot(store)
    strict = ('affinity', 'anti-affinity')

    def joins(**how):
        one = new_claim(snapshot, 1, group=group, **how)
        with store.hold() as conn:
            single = conn.execution_options(isolation_level='AUTOCOMMIT')
            try:
                prepared = claims.ClaimBatch(
                    store, [one], DEFAULT_RATIOS, strict
                )
                sent(prepared, single).wait()
            except claims.ClaimLost:
                return False
        return True

    assert joins()
    assert joins() == second
    assert joins() == third
    other = {'host_id': int(snapshot.hosts.ids[1]), 'host': 'Compute-1'}
    amounts = {'amounts': {}}
    assert joins(**other, **amounts) == (policy != 'affinity')
    held = load_snapshot(store).hosts
    assert len(held.groups[group].members) == len(held.instances) - 1
    uuids = [instance.uuid for instance in held.instances]
    store.write(lambda writer: lifecycle.release(writer, uuids))
    assert load_snapshot(store).hosts.groups[group].members == []


@pytest.mark.parametrize('row', [0, 1])
def test_anti_affinity_counts_a_member_that_moves_on_both_its_hosts(
    store, row
):
    group = str(uuid.uuid4())
    hosts = [{'host': n, 'vcpus': 8, 'memory_mb': 8192} for n in 'abc']
    import_inventory(store, {'hosts': hosts, 'server_groups': [
        {'uuid': group, 'policy': 'anti-affinity'}]})  # fmt: skip
    snapshot = load_snapshot(store)
    policies = ('anti-affinity',)
    member = claim_on(snapshot, 0, group=group)
    write_claims(store, member, policies=policies)
    move = move_of(snapshot, member.consumer, group=group)
    if row == 0:
        # In one batch with the move, which leaves its host later.
        beside = claim_on(snapshot, row, group=group)
        with pytest.raises(claims.ClaimLost):
            write_claims(store, move, beside, policies=policies)
    write_claims(store, move, policies=policies)
    with pytest.raises(claims.ClaimLost):
        write_claims(
            store, claim_on(snapshot, row, group=group), policies=policies
        )
    write_claims(store, claim_on(snapshot, 2, group=group), policies=policies)


def test_a_host_is_not_overcommitted_when_8_threads_claim(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    won = []

    def race() -> None:
        for _ in range(5):
            with contextlib.suppress(claims.ClaimLost):
                one = new_claim(snapshot, 200)
                write_claims(store, one)
                won.append(one)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 3072 // 200
    assert used_amounts(store)['MEMORY_MB'] == 1024 + 200 * len(won)


def test_a_claim_is_shown_with_its_project_and_request(store):
    import_inventory(store, FULL_INVENTORY)
    one = new_claim(
        load_snapshot(store), 100, project_id='p', request_id='req-9'
    )
    write_claims(store, one)
    with store.reading() as conn:
        shown = claim_queries.show(conn, one.consumer)
    assert shown.pop('created_at')
    assert shown == {
        'uuid': one.consumer,
        'kind': 'instance',
        'state': 'claimed',
        'host': 'compute-1',
        'node': 'compute-1',
        'moves_to': None,
        'project_id': 'p',
        'request_id': 'req-9',
        'allocations': {'compute-1': {'MEMORY_MB': 100, 'VCPU': 1}},
    }


def test_a_move_is_shown_and_read_again_when_it_is_dropped(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    other = new_claim(snapshot, 100)
    to = int(snapshot.hosts.ids[snapshot.hosts.rows_of_host('Compute-1')[0]])
    move = new_claim(
        snapshot, 1, consumer=INSTANCE, is_present=True, move=True,
        host_id=to, host='Compute-1', amounts={'VCPU': 1},
    )  # fmt: skip
    write_claims(store, other, move)
    with store.reading() as conn:
        moves_to = [
            claim_queries.show(conn, uuid)['moves_to']
            for uuid in (INSTANCE, other.consumer)
        ]
    assert moves_to == ['Compute-1', None]

    def drop(writer):
        dropped = lifecycle.drop_moves(writer, [INSTANCE, other.consumer])
        return dropped, writer.touched.instances, {*writer.touched.load}

    assert store.write(drop) == ([INSTANCE], [INSTANCE], {to})
