"""The store's verbs, on every database that is supported."""

from __future__ import annotations

import contextlib
import threading
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.store import (
    changes,
    claims,
    inventory,
    lifecycle,
    migrate,
    schema,
)
from scheduler_service.store.connection import Writer
from tests.support.stores import (
    DEFAULT_RATIOS,
    FULL_INVENTORY,
    INSTANCE,
    POOL,
    assert_same_snapshot,
    import_inventory,
    load_snapshot,
    new_claim,
    used_amounts,
    write_claims,
)


@pytest.mark.db
class TestStore:
    def test_import_export_gives_the_same_document(self, store):
        import_inventory(store, FULL_INVENTORY)
        with store.reading() as conn:
            exported = documents.dump(inventory.export(conn))
        again = documents.inventory(documents.read(exported))
        first, second = again.hosts
        assert (first.host, second.host) == ('compute-1', 'Compute-1')
        assert first.memory_mb_used == 1024
        assert first.traits == ['HW_A', 'HW_B']
        assert first.resources['CUSTOM_FPGA'].used == 1
        assert first.metrics[0].value == 0.5
        assert first.num_instances == 3
        assert second.disk_available_least == 3
        assert again.pools[0].attributes == {'pool_level': 'gold'}
        assert again.server_groups[0].max_server_per_host == 2
        assert again.instances[0].flavor == {'flavorid': '1'}

    def test_importing_again_changes_nothing(self, store):
        assert import_inventory(store, FULL_INVENTORY).added['hosts'] == 2
        before = load_snapshot(store).revision
        report = import_inventory(store, FULL_INVENTORY)
        assert (report.added.total(), report.changed.total()) == (0, 0)
        assert load_snapshot(store).revision == before

    def test_replace_removes_what_is_not_named(self, store):
        import_inventory(store, FULL_INVENTORY)
        report = import_inventory(
            store, {'hosts': FULL_INVENTORY['hosts'][:1]}, replace=True
        )
        assert report.removed == {
            'hosts': 1, 'pools': 1, 'aggregates': 1, 'instances': 1,
            'server_groups': 1,
        }  # fmt: skip
        assert len(load_snapshot(store).hosts) == 1

    def test_replace_keeps_a_host_with_claims(self, store):
        import_inventory(store, FULL_INVENTORY)
        write_claims(store, new_claim(load_snapshot(store), 512))
        with pytest.raises(errors.Conflict, match='compute-1 still holds'):
            import_inventory(store, {}, replace=True)
        assert len(load_snapshot(store).hosts) == 2

    def test_import_leaves_claims_held(self, store):
        import_inventory(store, FULL_INVENTORY)
        write_claims(store, new_claim(load_snapshot(store), 512))
        assert used_amounts(store)['MEMORY_MB'] == 1536
        changed = dict(FULL_INVENTORY['hosts'][0], memory_mb_used=2048)
        import_inventory(store, {'hosts': [changed]})
        assert used_amounts(store)['MEMORY_MB'] == 2560

    def test_export_and_import_do_not_count_a_claim_twice(self, store):
        import_inventory(store, FULL_INVENTORY)
        write_claims(store, new_claim(load_snapshot(store), 512))
        with store.reading() as conn:
            exported = inventory.export(conn)
        import_inventory(store, documents.read(documents.dump(exported)))
        assert used_amounts(store)['MEMORY_MB'] == 1536

    def test_claim_takes_up_to_the_limit_and_not_more(self, store):
        import_inventory(store, FULL_INVENTORY)
        snapshot = load_snapshot(store)
        write_claims(store, new_claim(snapshot, 3072))
        with pytest.raises(claims.ClaimLost):
            write_claims(store, new_claim(snapshot, 1))
        assert used_amounts(store)['MEMORY_MB'] == 4096

    def test_claim_is_all_of_the_batch_or_nothing(self, store):
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

    def test_claim_under_a_stated_ratio(self, store):
        import_inventory(store, FULL_INVENTORY)
        snapshot = load_snapshot(store)
        wide = new_claim(snapshot, 5000, ratios={'MEMORY_MB': 2.0})
        write_claims(store, wide)
        assert used_amounts(store)['MEMORY_MB'] == 6024

    def test_unlike_claims_of_one_host_are_added_up(self, store):
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

    def test_a_claim_of_nothing_is_a_claim(self, store):
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

    def test_claim_of_a_consumer_that_is_there_is_lost(self, store):
        import_inventory(store, FULL_INVENTORY)
        first = new_claim(load_snapshot(store), 100)
        write_claims(store, first)
        with pytest.raises(claims.ClaimLost):
            write_claims(store, first)
        assert used_amounts(store)['MEMORY_MB'] == 1124
        with store.reading() as conn:
            found = claims.placements(conn, [first.consumer, INSTANCE])
        assert found == {first.consumer: {'instance_uuid': 'x'}}

    def test_claim_for_a_known_instance_replaces_its_row(self, store):
        import_inventory(store, FULL_INVENTORY)
        write_claims(
            store,
            new_claim(load_snapshot(store), 1, consumer=INSTANCE, known=True),
        )
        placed = load_snapshot(store).hosts.instances.get(INSTANCE)
        assert placed is not None
        assert placed.claimed

    def test_disk_available_least_bounds_and_follows_claims(self, store):
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

    def test_release_gives_back_once(self, store):
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
    def test_group_policies_hold_in_the_claim(
        self, store, policy, rules, second, third
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
                    prepared = claims.prepare(
                        store, [one], DEFAULT_RATIOS, strict
                    )
                    claims.begin(store, single, prepared).result()
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
        uuids = [one.uuid for one in held.instances]
        store.write(lambda writer: lifecycle.release(writer, uuids))
        assert load_snapshot(store).hosts.groups[group].members == []

    def test_twenty_threads_never_take_more_than_there_is(self, store):
        import_inventory(store, FULL_INVENTORY)
        snapshot = load_snapshot(store)
        won = []

        def race() -> None:
            for _ in range(5):
                with contextlib.suppress(claims.ClaimLost):
                    one = new_claim(snapshot, 200)
                    write_claims(store, one)
                    won.append(one)

        threads = [threading.Thread(target=race) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 3072 // 200
        assert used_amounts(store)['MEMORY_MB'] == 1024 + 200 * len(won)

    def test_refresh_is_what_a_fresh_load_is(self, store):
        import_inventory(store, FULL_INVENTORY)
        snapshot = load_snapshot(store)
        one = new_claim(snapshot, 64)
        write_claims(store, one)
        import_inventory(store, {
            'hosts': [{'host': 'compute-0', 'memory_mb': 5,
                       'resources': {'CUSTOM_NEW': {'total': 2}}}],
            'aggregates': [{'id': 8, 'hosts': ['compute-0']}],
            'pools': [dict(POOL, name='renamed')],
            'instances': [{'uuid': str(uuid.uuid4()), 'host': 'compute-1'}],
        })  # fmt: skip
        with store.reading() as conn:
            refreshed = changes.refresh(conn, snapshot)
        assert_same_snapshot(refreshed, load_snapshot(store))
        assert refreshed.hosts.instances.get(one.consumer) is not None

    def test_refresh_after_a_purge_loads_everything(self, store):
        import_inventory(store, FULL_INVENTORY)
        snapshot = load_snapshot(store)
        for size in (1, 2, 3):
            import_inventory(
                store, {'hosts': [{'host': 'compute-9', 'vcpus': size}]}
            )
        store.write(lambda writer: changes.purge(writer.conn, 1e12))
        with store.reading() as conn:
            assert_same_snapshot(
                changes.refresh(conn, snapshot), load_snapshot(store)
            )

    def test_sync_again_changes_nothing_and_matches_the_models(self, store):
        assert migrate.sync(store) == migrate.head()
        assert migrate.differences(store) == []


@pytest.mark.db
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_no_reader_misses_a_change_under_eight_writers(kind, make_store):
    """8 writers make 10,000 changes; a reader follows and misses none."""
    store = make_store(kind)
    total, writers = 10_000, 8
    seen: list[str] = []
    revisions: list[int] = []
    done = threading.Event()

    def write(number: int) -> None:
        with store.hold() as conn:
            for turn in range(total // writers):

                def work(
                    writer: Writer, key: str = f'{number}-{turn}'
                ) -> None:
                    writer.touched.instances.append(key)

                store.write(work, conn)

    def read() -> None:
        last = 0
        while True:
            finished = done.is_set()
            with store.reading() as conn:
                found = changes.since(conn, last)
            for revision, touched in found:
                revisions.append(revision)
                seen.extend(touched.instances)
            last = revisions[-1] if revisions else 0
            if finished and not found:
                return

    reader = threading.Thread(target=read)
    threads = [
        threading.Thread(target=write, args=(n,)) for n in range(writers)
    ]
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert revisions == list(range(1, total + 1))
    assert len(set(seen)) == total
