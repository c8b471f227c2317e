"""What becomes of a claim: confirmed, moved, given back, expired, audited."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler_service import errors
from scheduler_service.model import Instance, documents
from scheduler_service.store import (
    audit,
    changes,
    claim_rows,
    claims,
    host_reports,
    inventory,
    lifecycle,
    loading,
    schema,
    sightings,
)
from scheduler_service.store.connection import Store
from tests.support.stores import (
    DEFAULT_RATIOS,
    FULL_INVENTORY,
    HOSTS,
    STRICT,
    assert_same_snapshot,
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

GROUP = 'aaaaaaaa-0000-4000-8000-000000000002'


@pytest.mark.db
class TestLife:
    def test_confirmed_by_its_host_and_by_no_other(self, store):
        snapshot = import_two_hosts(store)
        one = claim_on(snapshot, 0)
        write_claims(store, one)
        assert store.write(
            lambda w: lifecycle.confirm(w, {one.consumer: 'compute-2'})
        ) == []  # fmt: skip
        seen = {one.consumer: 'compute-1'}
        assert store.write(lambda w: lifecycle.confirm(w, seen)) == [
            one.consumer
        ]
        assert store.write(lambda w: lifecycle.confirm(w, seen)) == []
        with store.reading() as conn:
            assert claim_rows.show(conn, one.consumer)['state'] == 'confirmed'

    def test_a_move_holds_both_places_until_it_is_confirmed(self, store):
        snapshot = import_two_hosts(store)
        one = claim_on(snapshot, 0)
        write_claims(store, one)
        moving = claim_on(
            snapshot, 1, consumer=one.consumer, known=True, move=True
        )
        write_claims(store, moving)
        assert used_memory(store) == [1024, 1024]
        placed = load_snapshot(store).hosts.instances.get(one.consumer)
        assert placed is not None
        assert (placed.host, placed.bound_for) == ('compute-1', 'compute-2')
        with pytest.raises(claims.ClaimLost):
            write_claims(store, moving)
        store.write(
            lambda w: lifecycle.confirm(w, {one.consumer: 'compute-2'})
        )
        assert used_memory(store) == [0, 1024]
        with store.reading() as conn:
            shown = claim_rows.show(conn, one.consumer)
        assert (shown['state'], shown['host']) == ('confirmed', 'compute-2')
        assert audit_findings(store) == []

    def test_a_dropped_move_leaves_it_where_it_was(self, store):
        snapshot = import_two_hosts(store)
        one = claim_on(snapshot, 0)
        write_claims(store, one)
        write_claims(
            store,
            claim_on(
                snapshot, 1, consumer=one.consumer, known=True, move=True
            ),
        )
        drop = [one.consumer]
        assert store.write(lambda w: lifecycle.drop_moves(w, drop)) == drop
        assert store.write(lambda w: lifecycle.drop_moves(w, drop)) == []
        assert used_memory(store) == [1024, 0]

    def test_release_gives_back_both_places(self, store):
        snapshot = import_two_hosts(store)
        one = claim_on(snapshot, 0)
        write_claims(store, one)
        write_claims(
            store,
            claim_on(
                snapshot, 1, consumer=one.consumer, known=True, move=True
            ),
        )
        store.write(lambda w: lifecycle.release(w, [one.consumer]))
        assert used_memory(store) == [0, 0]
        assert load_snapshot(store).hosts.instances.get(one.consumer) is None
        assert audit_findings(store) == []

    def test_its_old_host_lets_go_of_what_moves(self, store):
        snapshot = import_two_hosts(store)
        one = claim_on(snapshot, 0)
        write_claims(store, one)
        write_claims(
            store,
            claim_on(
                snapshot, 1, consumer=one.consumer, known=True, move=True
            ),
        )
        gone = {'compute-1': [one.consumer]}
        assert store.write(lambda w: sightings.remove(w, gone))
        assert used_memory(store) == [0, 1024]
        placed = load_snapshot(store).hosts.instances.get(one.consumer)
        assert placed is not None
        assert (placed.host, placed.bound_for) == ('compute-2', '')

    def test_unconfirmed_claims_expire_and_confirmed_ones_stay(self, store):
        snapshot = import_two_hosts(store)
        kept, lost, moved = (claim_on(snapshot, 0) for _ in range(3))
        write_claims(store, kept, lost, moved)
        write_claims(
            store,
            claim_on(
                snapshot, 1, consumer=moved.consumer, known=True, move=True
            ),
        )
        seen = {kept.consumer: 'compute-1', moved.consumer: 'compute-1'}
        store.write(lambda w: lifecycle.confirm(w, seen))
        past, later = time.time() - 60, time.time() + 60
        assert store.write(lambda w: lifecycle.expire(w, past)) == {
            'claims': 0, 'moves': 0,
        }  # fmt: skip
        assert store.write(lambda w: lifecycle.expire(w, later)) == {
            'claims': 1, 'moves': 1,
        }  # fmt: skip
        assert used_memory(store) == [2048, 0]

    @pytest.mark.parametrize('policy', ['anti-affinity', 'affinity'])
    def test_a_move_keeps_the_policy_of_its_group(self, store, policy):
        import_two_hosts(store)
        import_inventory(
            store, {'server_groups': [{'uuid': GROUP, 'policy': policy}]}
        )
        snapshot = load_snapshot(store)
        rows = (0, 1) if policy == 'anti-affinity' else (0, 0)
        members = [claim_on(snapshot, row, group=GROUP) for row in rows]
        for one in members:
            write_claims(store, one, policies=STRICT)
        target = 1
        moving = claim_on(snapshot, target, consumer=members[0].consumer,
                    known=True, move=True, group=GROUP)  # fmt: skip
        with pytest.raises(claims.ClaimLost):
            write_claims(store, moving, policies=STRICT)
        assert audit_findings(store) == []

    def test_a_claimed_instance_seen_elsewhere_is_there(self, store):
        snapshot = import_two_hosts(store)
        one = claim_on(snapshot, 0)
        write_claims(store, one)
        here = Instance(uuid=one.consumer, host='compute-2')
        store.write(lambda w: sightings.put(w, [here]))
        assert used_memory(store) == [0, 0]
        placed = load_snapshot(store).hosts.instances.get(one.consumer)
        assert placed is not None
        assert (placed.host, placed.claimed) == ('compute-2', False)

    def test_sync_forgets_what_is_gone_and_keeps_what_is_coming(self, store):
        snapshot = import_two_hosts(store)
        coming, there, gone = (claim_on(snapshot, 0) for _ in range(3))
        write_claims(store, coming, there, gone)
        seen = {one.consumer: 'compute-1' for one in (there, gone)}
        store.write(lambda w: lifecycle.confirm(w, seen))
        new = str(uuid.uuid4())
        listed = [there.consumer, new]
        changed = store.write(lambda w: sightings.sync(w, 'compute-1', listed))
        assert changed == sorted([gone.consumer, new])
        index = load_snapshot(store).hosts.instances
        assert {one.uuid for one in index} == {
            coming.consumer, there.consumer, new,
        }  # fmt: skip
        assert used_memory(store) == [2048, 0]


@pytest.mark.db
class TestReports:
    def report(self, store: Store, **told: Any) -> dict[str, int]:
        parsed = documents.host_report({'host': 'compute-1', **told})
        return store.write(lambda w: host_reports.write(w, [parsed]))

    def test_use_counts_a_confirmed_claim_once(self, store):
        import_inventory(store, FULL_INVENTORY)
        one = new_claim(load_snapshot(store), 512)
        write_claims(store, one)
        assert used_amounts(store)['MEMORY_MB'] == 1536
        # Not there yet: what the host uses does not count it.
        self.report(store, memory_mb_used=1024)
        assert used_amounts(store)['MEMORY_MB'] == 1536
        store.write(
            lambda w: lifecycle.confirm(w, {one.consumer: 'compute-1'})
        )
        self.report(store, memory_mb_used=1536)
        assert used_amounts(store)['MEMORY_MB'] == 1536
        self.report(store, memory_mb_used=2048)
        assert used_amounts(store)['MEMORY_MB'] == 2048
        store.write(lambda w: lifecycle.release(w, [one.consumer]))
        assert used_amounts(store)['MEMORY_MB'] == 1536
        assert audit_findings(store) == []

    def test_listed_instances_are_confirmed_and_counted(self, store):
        import_inventory(store, FULL_INVENTORY)
        one = new_claim(load_snapshot(store), 512)
        write_claims(store, one)
        self.report(store, memory_mb_used=1536, instances=[one.consumer])
        assert used_amounts(store)['MEMORY_MB'] == 1536
        with store.reading() as conn:
            assert claim_rows.show(conn, one.consumer)['state'] == 'confirmed'

    def test_the_same_again_changes_nothing(self, store):
        import_inventory(store, FULL_INVENTORY)
        told = {'memory_mb_used': 77, 'num_io_ops': 3, 'num_instances': 9}
        assert self.report(store, **told)['changed'] == 1
        before = load_snapshot(store).revision
        assert self.report(store, **told)['same'] == 1
        assert load_snapshot(store).revision == before

    def test_what_is_not_told_stays(self, store):
        import_inventory(store, FULL_INVENTORY)
        self.report(store, stats={'io': 3})
        host = load_snapshot(store).hosts
        assert host.resources['CUSTOM_FPGA'].total[0] == 4
        assert host.coded['trait_set'].at(0) == {'HW_A', 'HW_B'}

    def test_an_unknown_host_is_added(self, store):
        import_inventory(store, FULL_INVENTORY)
        parsed = documents.host_report({'host': 'new', 'vcpus': 4})
        told = store.write(lambda w: host_reports.write(w, [parsed]))
        assert told == {'added': 1, 'changed': 0, 'same': 0}
        assert len(load_snapshot(store).hosts) == 3

    def test_measured_disk_is_lessened_by_what_is_coming(self, store):
        import_inventory(store, FULL_INVENTORY)
        write_claims(
            store, new_claim(load_snapshot(store), 1, amounts={'DISK_GB': 10})
        )
        self.report(store, disk_available_least=50)
        least = load_snapshot(store).hosts.numbers['disk_available_least']
        assert least[0] == 40

    def test_a_snapshot_follows_reports(self, store):
        import_inventory(store, FULL_INVENTORY)
        before = load_snapshot(store)
        self.report(store, memory_mb_used=5, state='down', num_io_ops=2)
        self.report(store, metrics=[{'name': 'x', 'value': 1.0}])
        with store.reading() as conn:
            assert_same_snapshot(
                changes.refresh(conn, before), load_snapshot(store)
            )


@pytest.mark.db
class TestAudit:
    def test_finds_and_mends_each_kind(self, store):
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
            'orphaned', 'overcommitted', 'unknown', 'used',
        ]  # fmt: skip
        store.write(audit.fix)
        assert audit_findings(store) == []
        assert used_amounts(store)['MEMORY_MB'] == 1536

    def test_a_claim_that_is_not_there_has_a_name(self, store):
        with (
            store.reading() as conn,
            pytest.raises(errors.ClaimNotFound),
        ):
            claim_rows.show(conn, str(uuid.uuid4()))


def wipe(store: Store) -> None:
    """Empty every table; counters start anew."""
    with store.engine.begin() as conn:
        for table in schema.metadata.sorted_tables:
            if table is schema.counters:
                conn.execute(sa.update(table).values(value=0))
            else:
                conn.execute(sa.delete(table))


CONSUMERS = [str(uuid.UUID(int=n + 1)) for n in range(8)]
some = st.lists(st.sampled_from(CONSUMERS), min_size=1, max_size=3,
                unique=True)  # fmt: skip


class Verbs(RuleBasedStateMachine):
    """Any verbs of the store in any order: what is used is allocated.

    Three hosts of 4,096 MB and one group; eight consumers at most.
    """

    store: Store

    def __init__(self) -> None:
        super().__init__()
        wipe(self.store)
        import_inventory(self.store, {
            'hosts': [
                {'host': name, 'vcpus': 4, 'memory_mb': 4096,
                 'local_gb': 40, 'ram_allocation_ratio': 1.0,
                 'memory_mb_used': 512}
                for name in HOSTS
            ],
            'server_groups': [{'uuid': GROUP, 'policy': 'anti-affinity'}],
        })  # fmt: skip
        self.follower = load_snapshot(self.store)

    @rule(
        consumers=some,
        row=st.integers(0, 2),
        amount=st.sampled_from([256, 1024, 2048]),
        grouped=st.booleans(),
        move=st.booleans(),
    )
    def claim(self, consumers, row, amount, grouped, move):
        snapshot = load_snapshot(self.store)
        wanted = []
        for one in consumers:
            known = snapshot.hosts.instances.get(one) is not None
            wanted.append(
                claim_on(snapshot, row, consumer=one, known=known,
                   amounts={'MEMORY_MB': amount, 'VCPU': 1},
                   move=move and known, group=GROUP if grouped else None)
            )  # fmt: skip
        before = held(self.store)
        try:
            write_claims(self.store, *wanted, policies=STRICT)
        except claims.ClaimLost:
            assert held(self.store) == before

    @rule(consumers=some)
    def release(self, consumers):
        self.store.write(lambda w: lifecycle.release(w, consumers))
        left = held(self.store)
        assert not {one for one, *_ in left} & {*consumers}

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def confirm(self, consumers, host):
        seen = dict.fromkeys(consumers, host)
        self.store.write(lambda w: lifecycle.confirm(w, seen))

    @rule(consumers=some)
    def drop_moves(self, consumers):
        self.store.write(lambda w: lifecycle.drop_moves(w, consumers))

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def leave(self, consumers, host):
        self.store.write(lambda w: sightings.remove(w, {host: consumers}))

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def seen(self, consumers, host):
        there = [Instance(uuid=one, host=host) for one in consumers]
        self.store.write(lambda w: sightings.put(w, there))

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def sync(self, consumers, host):
        self.store.write(lambda w: sightings.sync(w, host, consumers))

    @rule(ahead=st.sampled_from([-60, 60]))
    def expire(self, ahead):
        before = time.time() + ahead
        self.store.write(lambda w: lifecycle.expire(w, before))

    @rule(host=st.sampled_from(HOSTS), use=st.integers(0, 2048),
          least=st.none() | st.integers(0, 40))  # fmt: skip
    def report(self, host, use, least):
        told = documents.host_report({
            'host': host, 'memory_mb_used': use,
            'disk_available_least': least,
        })  # fmt: skip
        self.store.write(lambda w: host_reports.write(w, [told]))

    @rule(host=st.sampled_from(HOSTS), use=st.integers(0, 1024))
    def bring_in(self, host, use):
        import_inventory(self.store, {'hosts': [
            {'host': host, 'vcpus': 4, 'memory_mb': 4096, 'local_gb': 40,
             'ram_allocation_ratio': 1.0, 'memory_mb_used': use},
        ]})  # fmt: skip

    @rule()
    def export_and_import(self):
        before = held(self.store)
        with self.store.reading() as conn:
            document = documents.dump(inventory.export(conn))
        import_inventory(self.store, documents.read(document))
        assert held(self.store) == before

    @rule()
    def mend(self):
        assert self.store.write(audit.fix) == 0

    @precondition(lambda self: self.follower is not None)
    @invariant()
    def use_is_what_is_allocated(self):
        with self.store.reading() as conn:
            found = audit.audit(conn, DEFAULT_RATIOS)
            # Somebody else's report may overcommit a host, a claim may not.
            wrong = [
                one for one in found.findings if one.kind != 'overcommitted'
            ]
            assert wrong == []
            assert group_hosts(conn)
            self.follower = changes.refresh(conn, self.follower)
            assert_same_snapshot(self.follower, loading.snapshot(conn))


def held(store: Store) -> set[tuple[str, int, str, int]]:
    """Return all allocations."""
    with store.reading() as conn:
        rows = conn.execute(sa.select(schema.allocations))
        return {tuple(row) for row in rows}


def group_hosts(conn: Any) -> bool:
    """Whether claims keep the group's members apart.

    Hosts may report members together: that is not for claims to prevent.
    """
    inst, members = schema.instances, schema.server_group_members
    found = conn.execute(
        sa.select(inst.c.host)
        .join(members, members.c.instance_uuid == inst.c.uuid)
        .where(inst.c.state == 'claimed')
    ).scalars()
    hosts = list(found)
    return len(hosts) == len(set(hosts))


@pytest.mark.db
def test_any_verbs_in_any_order_keep_the_books(store):
    class Here(Verbs):
        pass

    Here.store = store
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.db
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_a_deadlock_is_tried_again_and_counted(kind, make_store):
    store = make_store(kind)
    snapshot = import_two_hosts(store)
    reasons: list[str] = []
    store.on_retry = reasons.append
    table = schema.hosts
    ids = [int(one) for one in snapshot.hosts.ids]
    meeting = threading.Barrier(2, timeout=20)

    def crosswise(first: int, second: int) -> None:
        met: list[bool] = []

        def work(writer: Any) -> None:
            for turn, host_id in enumerate((first, second)):
                writer.conn.execute(
                    sa.update(table)
                    .where(table.c.id == host_id)
                    .values(num_io_ops=table.c.num_io_ops + 1)
                )
                if turn == 0 and not met:
                    met.append(True)
                    meeting.wait()

        store.write(work)

    threads = [
        threading.Thread(target=crosswise, args=pair)
        for pair in ((ids[0], ids[1]), (ids[1], ids[0]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reasons == ['deadlock']
    assert load_snapshot(store).hosts.number('num_io_ops').tolist() == [2, 2]
