"""Claims of what an aggregate offers once for its hosts, on every database."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import msgspec
import pytest

from scheduler_service.columns.table import Snapshot
from scheduler_service.model import Aggregate, documents
from scheduler_service.store import claims
from scheduler_service.store.claims import claim_queries, lifecycle
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import change_feed, loading
from scheduler_service.store.records import audit
from scheduler_service.store.writing import aggregates
from scheduler_service.store.writing import hosts as host_rows
from tests.support.stores import (
    HOSTS,
    assert_same_snapshot,
    audit_findings,
    import_inventory,
    load_snapshot,
    sharing_claim,
    write_claims,
)

pytestmark = pytest.mark.db

CAD = 'CUSTOM_LICENCE_CAD'
# The first two hosts have the licences, the third has none.
CLOUD: dict[str, Any] = {
    'hosts': [
        {'host': name, 'vcpus': 64, 'memory_mb': 65536, 'local_gb': 100}
        for name in HOSTS
    ],
    'aggregates': [
        {'id': 7, 'name': 'cad', 'hosts': [*HOSTS[:2]],
         'resources': {CAD: {'total': 5}}},
    ],
}  # fmt: skip


@pytest.fixture
def cloud(store: Store) -> Snapshot:
    import_inventory(store, CLOUD)
    return load_snapshot(store)


def licensed(cloud: Snapshot, row: int, licences: int = 1, **how: Any) -> Any:
    """Return a claim of 1,024 MB and some licences on the host of a row."""
    amounts = {'MEMORY_MB': 1024, **({CAD: licences} if licences else {})}
    return sharing_claim(cloud, row, amounts, **how)


def move(cloud: Snapshot, consumer: str, row: int, licences: int) -> Any:
    how = {'consumer': consumer, 'is_present': True, 'move': True}
    return licensed(cloud, row, licences, **how)


def used(store: Store) -> list[int]:
    """Return what is used of the licences, as each host sees it."""
    columns = load_snapshot(store).hosts.resources[CAD]
    return columns.used[columns.total >= 0].tolist()


def test_all_hosts_of_an_aggregate_see_the_same_amount(store, cloud):
    write_claims(store, licensed(cloud, 0, 2), licensed(cloud, 1))
    write_claims(store, licensed(cloud, 1))
    assert used(store) == [4, 4]
    for late in (
        [licensed(cloud, 0, 2)],
        [licensed(cloud, 0), licensed(cloud, 1)],
    ):
        with pytest.raises(claims.ClaimLost):
            write_claims(store, *late)
    write_claims(store, licensed(cloud, 0))
    assert used(store) == [5, 5]
    assert audit_findings(store) == []


def test_no_licence_is_promised_twice_when_all_claim_at_once(store, cloud):
    won: list[str] = []

    def claim(row: int) -> None:
        for _ in range(3):
            one = licensed(cloud, row)
            try:
                write_claims(store, one)
            except claims.ClaimLost:
                return
            won.append(one.consumer)

    threads = [
        threading.Thread(target=claim, args=(number % 2,))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 5
    assert used(store) == [5, 5]
    store.write(lambda writer: lifecycle.release(writer, won))
    assert used(store) == [0, 0]


def test_a_snapshot_follows_what_claims_and_operators_change(store, cloud):
    one = licensed(cloud, 0, 2)
    leaving = move(cloud, one.consumer, 2, 0)
    arrived = {one.consumer: HOSTS[2]}
    more = msgspec.json.decode(msgspec.json.encode(CLOUD))
    more['aggregates'][0]['resources'][CAD]['total'] = 9
    more['aggregates'].append({'id': 3, 'hosts': [*HOSTS[1:]],
                               'resources': {CAD: {'total': 1}}})  # fmt: skip
    changed = [{'host': HOSTS[1], 'vcpus': 32}]
    own = [{'host': HOSTS[0], 'resources': {CAD: {'total': 3}}}]
    for change in (
        lambda: write_claims(store, one),
        lambda: import_inventory(store, {'hosts': changed}),
        lambda: write_claims(store, leaving),
        lambda: import_inventory(store, more),
        lambda: store.write(lambda w: lifecycle.confirm(w, arrived)),
        lambda: import_inventory(store, {'hosts': own}),
        lambda: store.write(lambda w: lifecycle.release(w, [one.consumer])),
        lambda: store.write(lambda w: aggregates.remove(w, [3])),
        lambda: store.write(lambda w: host_rows.remove(w, [2])),
        lambda: store.write(lambda w: aggregates.remove(w, [7])),
    ):
        change()
        with store.reading() as conn:
            cloud = change_feed.refresh(conn, cloud)
        loaded = load_snapshot(store)
        assert_same_snapshot(cloud, loaded)
        for name, providers in loaded.hosts.shared.items():
            assert cloud.hosts.shared[name].tolist() == providers.tolist()


@pytest.mark.parametrize('then', ['arrives', 'stays', 'is deleted'])
def test_a_move_within_an_aggregate_takes_what_more_it_needs(
    store, cloud, then
):
    """All licences are used; the larger of both sizes counts."""
    one = licensed(cloud, 0, 3)
    write_claims(store, one, licensed(cloud, 1, 1))
    uuids = [one.consumer]
    with pytest.raises(claims.ClaimLost):
        write_claims(store, move(cloud, one.consumer, 1, 5))
    write_claims(store, move(cloud, one.consumer, 1, 4))
    assert used(store) == [5, 5]
    if then == 'arrives':
        arrived = {one.consumer: HOSTS[1]}
        store.write(lambda writer: lifecycle.confirm(writer, arrived))
        assert used(store) == [5, 5]
        write_claims(store, move(cloud, one.consumer, 0, 2))
        arrived = {one.consumer: HOSTS[0]}
        store.write(lambda writer: lifecycle.confirm(writer, arrived))
        assert used(store) == [3, 3]
    elif then == 'stays':
        store.write(lambda writer: lifecycle.drop_moves(writer, uuids))
        assert used(store) == [4, 4]
    assert audit_findings(store) == []
    store.write(lambda writer: lifecycle.release(writer, uuids))
    assert used(store) == [1, 1]


def test_a_move_out_of_an_aggregate_holds_both_sides(store, cloud):
    one = licensed(cloud, 0, 3)
    write_claims(store, one)
    write_claims(store, move(cloud, one.consumer, 2, 0))
    assert used(store) == [3, 3]
    store.write(lambda w: lifecycle.drop_moves(w, [one.consumer]))
    assert used(store) == [3, 3]
    write_claims(store, move(cloud, one.consumer, 2, 0))
    arrived = {one.consumer: HOSTS[2]}
    store.write(lambda writer: lifecycle.confirm(writer, arrived))
    assert used(store) == [0, 0]
    assert audit_findings(store) == []


def test_claims_stay_when_their_aggregate_changes(store, cloud):
    """What is over is reported; nothing is lost."""
    one = licensed(cloud, 0, 3)
    write_claims(store, one)

    def offer(**offered: Any) -> None:
        aggregate = dict(CLOUD['aggregates'][0], resources={CAD: offered})
        import_inventory(store, {'aggregates': [aggregate]})

    offer(total=2, used=1)
    assert used(store) == [4, 4]
    over = '4 are used, 2 may be'
    assert audit_findings(store) == [f'overcommitted: {over}']
    store.write(lambda w: aggregates.remove(w, [7]))
    assert 'orphaned' in audit_findings(store)[0]
    offer(total=5)
    assert used(store) == [3, 3]
    # Other services that know aggregates know no resources.
    followed = Aggregate(id=7, name='cad', hosts=[HOSTS[1]])
    store.write(lambda w: aggregates.replace(w, [followed]))
    assert used(store) == [3]
    store.write(lambda w: lifecycle.release(w, [one.consumer]))
    assert used(store) == [0]


def test_a_claim_of_an_aggregate_counts_once_when_exported(store, cloud):
    write_claims(store, licensed(cloud, 0, 3))
    with store.reading() as conn:
        exported = documents.read(documents.dump(loading.export(conn)))
    (aggregate,) = exported['aggregates']
    assert aggregate['resources'][CAD]['used'] == 3
    report = import_inventory(store, exported)
    assert report.changed.total() == 0
    assert used(store) == [3, 3]


def test_an_audit_restores_what_a_claim_lost_of_an_aggregate(store, cloud):
    one, other = licensed(cloud, 0, 3), str(uuid.uuid4())
    write_claims(store, one, licensed(cloud, 1, 1, consumer=other))
    with store.engine.begin() as conn:
        conn.exec_driver_sql('DELETE FROM allocations')
    assert len(audit_findings(store)) > 2
    store.write(audit.fix)
    assert audit_findings(store) == []
    assert used(store) == [4, 4]
    with store.reading() as conn:
        shown = claim_queries.show(conn, one.consumer)
    assert shown['allocations'] == {
        'aggregate cad': {CAD: 3},
        'compute-1': {'MEMORY_MB': 1024},
    }
