"""The store's verbs, on every database that is supported."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.store import claims, migrate, schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.reading import (
    change_feed,
    inventory_export,
    loading,
)
from scheduler_service.store.writing import inventory_import

FALLBACK = {
    name: Settings().default_ratio(name)
    for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')
}
POOL = {
    'id': '794ccc2c-d751-44fe-b57f-8894c9f5c842',
    'name': 'default',
    'attributes': {'pool_level': 'gold'},
}
INSTANCE = '11111111-2222-4333-8444-555555555555'
DOCUMENT = {
    'pools': [POOL],
    'hosts': [
        {
            'host': 'compute-1',
            'vcpus': 8,
            'memory_mb': 4096,
            'memory_mb_used': 1024,
            'local_gb': 100,
            'ram_allocation_ratio': 1.0,
            'traits': ['HW_B', 'HW_A'],
            'resources': {'CUSTOM_FPGA': {'total': 4, 'used': 1}},
            'cpu_info': {'features': ['aes']},
            'metrics': [{'name': 'load', 'value': 0.5}],
            'num_instances': 3,
        },
        {'host': 'Compute-1', 'vcpus': 2, 'disk_available_least': 3},
    ],
    'aggregates': [
        {'id': 7, 'name': 'ssd', 'hosts': ['compute-1'],
         'metadata': {'availability_zone': 'z1'}},
    ],
    'instances': [
        {'uuid': INSTANCE, 'host': 'compute-1', 'project_id': 'p',
         'flavor': {'flavorid': '1'}},
    ],
    'server_groups': [
        {'uuid': 'aaaaaaaa-0000-4000-8000-000000000001', 'name': 'web',
         'policy': 'anti-affinity', 'rules': {'max_server_per_host': 2},
         'members': [INSTANCE]},
    ],
}  # fmt: skip


def bring(store: Store, document: Any, **how: Any) -> inventory_import.Report:
    """Import a document and return the report."""
    parsed = documents.inventory(document)
    return store.write(
        lambda writer: inventory_import.Importer(writer, **how).run(parsed)
    )


def load(store: Store) -> Snapshot:
    with store.reading() as conn:
        return loading.snapshot(conn)


def a_claim(snapshot: Snapshot, memory: int, **how: Any) -> claims.Claim:
    values = {
        'consumer': str(uuid.uuid4()),
        'host_id': int(snapshot.hosts.ids[0]),
        'host': 'compute-1',
        'node': 'compute-1',
        'amounts': {'MEMORY_MB': memory, 'VCPU': 1},
        'ratios': {},
        'project_id': None,
        'request_id': 'req-1',
        'document': '{}',
        'placement': '{"instance_uuid": "x"}',
    }
    return claims.Claim(**{**values, **how})


def make(store: Store, *wanted: claims.Claim) -> int:
    with store.hold() as conn:
        single = conn.execution_options(isolation_level='AUTOCOMMIT')
        prepared = claims.prepare(store, wanted, FALLBACK)
        return claims.send(store, single, prepared).wait()


def used(store: Store) -> dict[str, int]:
    columns = load(store).hosts.resources
    return {name: int(one.used[0]) for name, one in columns.items()}


@pytest.mark.db
class TestStore:
    def test_import_export_gives_the_same_document(self, store):
        bring(store, DOCUMENT)
        with store.reading() as conn:
            exported = documents.dump(inventory_export.export(conn))
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
        assert bring(store, DOCUMENT).added['hosts'] == 2
        before = load(store).revision
        report = bring(store, DOCUMENT)
        assert (report.added.total(), report.changed.total()) == (0, 0)
        assert load(store).revision == before

    def test_replace_removes_what_is_not_named(self, store):
        bring(store, DOCUMENT)
        report = bring(store, {'hosts': DOCUMENT['hosts'][:1]}, replace=True)
        assert report.removed == {
            'hosts': 1, 'pools': 1, 'aggregates': 1, 'instances': 1,
            'server_groups': 1,
        }  # fmt: skip
        assert len(load(store).hosts) == 1

    def test_replace_keeps_a_host_with_claims(self, store):
        bring(store, DOCUMENT)
        make(store, a_claim(load(store), 512))
        with pytest.raises(errors.Conflict, match='compute-1 still holds'):
            bring(store, {}, replace=True)
        assert len(load(store).hosts) == 2

    def test_import_leaves_claims_held(self, store):
        bring(store, DOCUMENT)
        make(store, a_claim(load(store), 512))
        assert used(store)['MEMORY_MB'] == 1536
        changed = dict(DOCUMENT['hosts'][0], memory_mb_used=2048)
        bring(store, {'hosts': [changed]})
        assert used(store)['MEMORY_MB'] == 2560

    def test_export_and_import_do_not_count_a_claim_twice(self, store):
        bring(store, DOCUMENT)
        make(store, a_claim(load(store), 512))
        with store.reading() as conn:
            exported = inventory_export.export(conn)
        bring(store, documents.read(documents.dump(exported)))
        assert used(store)['MEMORY_MB'] == 1536

    def test_claim_takes_up_to_the_limit_and_not_more(self, store):
        bring(store, DOCUMENT)
        snapshot = load(store)
        make(store, a_claim(snapshot, 3072))
        with pytest.raises(claims.ClaimLost):
            make(store, a_claim(snapshot, 1))
        assert used(store)['MEMORY_MB'] == 4096

    def test_claim_is_all_of_the_batch_or_nothing(self, store):
        bring(store, DOCUMENT)
        snapshot = load(store)
        before = used(store)
        with pytest.raises(claims.ClaimLost):
            make(store, a_claim(snapshot, 2000), a_claim(snapshot, 2000))
        assert used(store) == before
        with store.reading() as conn:
            held = conn.execute(sa.select(schema.allocations)).all()
        assert held == []

    def test_claim_under_a_stated_ratio(self, store):
        bring(store, DOCUMENT)
        snapshot = load(store)
        wide = a_claim(snapshot, 5000, ratios={'MEMORY_MB': 2.0})
        make(store, wide)
        assert used(store)['MEMORY_MB'] == 6024

    def test_unlike_claims_of_one_host_are_added_up(self, store):
        bring(store, {'hosts': [
            {'host': 'compute-1', 'vcpus': 4, 'memory_mb': 100,
             'local_gb': 10},
        ]})  # fmt: skip
        snapshot = load(store)
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
            make(store, *(a_claim(snapshot, 0, **how)
                          for how in (*unlike, beyond)))  # fmt: skip
        batch = [a_claim(snapshot, 0, **how) for how in unlike]
        make(store, *batch)
        assert used(store) == {'DISK_GB': 8, 'MEMORY_MB': 200, 'VCPU': 3}
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
        bring(store, DOCUMENT)
        snapshot = load(store)
        first, second, third = (
            a_claim(snapshot, 0, amounts={}) for _ in range(3)
        )
        make(store, first)
        make(store, second, third)
        with store.reading() as conn:
            held = claims.placements(
                conn, [first.consumer, second.consumer, third.consumer]
            )
        assert len(held) == 3
        with pytest.raises(claims.ClaimLost):
            make(store, first)

    def test_claim_of_a_consumer_that_is_there_is_lost(self, store):
        bring(store, DOCUMENT)
        first = a_claim(load(store), 100)
        make(store, first)
        with pytest.raises(claims.ClaimLost):
            make(store, first)
        assert used(store)['MEMORY_MB'] == 1124
        with store.reading() as conn:
            found = claims.placements(conn, [first.consumer, INSTANCE])
        assert found == {first.consumer: {'instance_uuid': 'x'}}

    def test_claim_for_a_known_instance_replaces_its_row(self, store):
        bring(store, DOCUMENT)
        make(store, a_claim(load(store), 1, consumer=INSTANCE, known=True))
        placed = load(store).hosts.instances.get(INSTANCE)
        assert placed is not None
        assert placed.claimed

    def test_disk_available_least_bounds_and_follows_claims(self, store):
        bring(store, {'hosts': [
            {'host': 'compute-1', 'local_gb': 100, 'disk_available_least': 5},
        ]})  # fmt: skip
        take = {'amounts': {'DISK_GB': 3}}
        snapshot = load(store)
        first = a_claim(snapshot, 0, **take)
        make(store, first)
        with pytest.raises(claims.ClaimLost):
            make(store, a_claim(snapshot, 0, **take))
        store.write(lambda writer: lifecycle.release(writer, [first.consumer]))
        make(store, a_claim(snapshot, 0, **take))

    def test_release_gives_back_once(self, store):
        bring(store, DOCUMENT)
        before = used(store)
        one = a_claim(load(store), 512)
        make(store, one)

        def give(writer: Writer) -> list[str]:
            return lifecycle.release(writer, [one.consumer, INSTANCE])

        assert store.write(give) == [one.consumer]
        assert store.write(give) == []
        assert used(store) == before

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
        bring(store, {**DOCUMENT, 'server_groups': [
            {'uuid': group, 'policy': policy, 'rules': rules}]})  # fmt: skip
        snapshot = load(store)
        strict = ('affinity', 'anti-affinity')

        def joins(**how):
            one = a_claim(snapshot, 1, group=group, **how)
            with store.hold() as conn:
                single = conn.execution_options(isolation_level='AUTOCOMMIT')
                try:
                    prepared = claims.prepare(store, [one], FALLBACK, strict)
                    claims.send(store, single, prepared).wait()
                except claims.ClaimLost:
                    return False
            return True

        assert joins()
        assert joins() == second
        assert joins() == third
        other = {'host_id': int(snapshot.hosts.ids[1]), 'host': 'Compute-1'}
        amounts = {'amounts': {}}
        assert joins(**other, **amounts) == (policy != 'affinity')
        held = load(store).hosts
        assert len(held.groups[group].members) == len(held.instances) - 1
        uuids = [one.uuid for one in held.instances]
        store.write(lambda writer: lifecycle.release(writer, uuids))
        assert load(store).hosts.groups[group].members == []

    def test_twenty_threads_never_take_more_than_there_is(self, store):
        bring(store, DOCUMENT)
        snapshot = load(store)
        won = []

        def race() -> None:
            for _ in range(5):
                with contextlib.suppress(claims.ClaimLost):
                    one = a_claim(snapshot, 200)
                    make(store, one)
                    won.append(one)

        threads = [threading.Thread(target=race) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 3072 // 200
        assert used(store)['MEMORY_MB'] == 1024 + 200 * len(won)

    def test_refresh_is_what_a_fresh_load_is(self, store):
        bring(store, DOCUMENT)
        snapshot = load(store)
        one = a_claim(snapshot, 64)
        make(store, one)
        bring(store, {
            'hosts': [{'host': 'compute-0', 'memory_mb': 5,
                       'resources': {'CUSTOM_NEW': {'total': 2}}}],
            'aggregates': [{'id': 8, 'hosts': ['compute-0']}],
            'pools': [dict(POOL, name='renamed')],
            'instances': [{'uuid': str(uuid.uuid4()), 'host': 'compute-1'}],
        })  # fmt: skip
        with store.reading() as conn:
            refreshed = change_feed.refresh(conn, snapshot)
        assert_same(refreshed, load(store))
        assert refreshed.hosts.instances.get(one.consumer) is not None

    def test_refresh_after_a_purge_loads_everything(self, store):
        bring(store, DOCUMENT)
        snapshot = load(store)
        for size in (1, 2, 3):
            bring(store, {'hosts': [{'host': 'compute-9', 'vcpus': size}]})
        store.write(lambda writer: change_feed.prune(writer.conn, 1e12))
        with store.reading() as conn:
            assert_same(change_feed.refresh(conn, snapshot), load(store))

    def test_sync_again_changes_nothing_and_matches_the_models(self, store):
        assert migrate.sync(store) == migrate.head()
        assert migrate.differences(store) == []


def assert_same(one: Snapshot, two: Snapshot) -> None:
    """Compare two snapshots host by host."""
    assert one.revision == two.revision
    assert one.pools == two.pools
    first, second = one.hosts, two.hosts
    assert first.ids.tolist() == second.ids.tolist()
    for name in first.coded:
        values = [first.coded[name].at(row) for row in range(len(first))]
        others = [second.coded[name].at(row) for row in range(len(second))]
        assert values == others, name
    for name in first.numbers:
        assert str(first.numbers[name]) == str(second.numbers[name]), name
    assert first.resources.keys() == second.resources.keys()
    for name, columns in first.resources.items():
        assert str(columns) == str(second.resources[name]), name
    assert set(first.instances) == set(second.instances)
    assert first.groups == second.groups
    assert first.topology.aggregates == second.topology.aggregates


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
                found = change_feed.since(conn, last)
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
