"""Classes that are not offered any more while claims hold some of them.

What the database keeps of them is in no list, and goes with the last claim.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.ports import ClaimLost
from scheduler_service.model.inventory import provider_of
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle, pod_claims
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.claims.pod_claims import PodClaim
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import change_feed, loading
from scheduler_service.store.records import audit
from scheduler_service.store.writing import aggregates
from tests.support.databases import listens, waiting
from tests.support.stores import (
    HOSTS,
    audit_findings,
    import_inventory,
    load_snapshot,
    sharing_claim,
    write_claims,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.db

CAD = 'CUSTOM_LICENCE_CAD'
PROVIDERS = {'host': 1, 'aggregate': provider_of(7)}
each_provider = pytest.mark.parametrize('kind', PROVIDERS)


def offer(store: Store, kind: str, total: int | None = 5) -> None:
    """Have a host or an aggregate offer licences; None: it offers none."""
    offered = {} if total is None else {CAD: {'total': total}}
    mine = {kind: offered}
    aggregate = {'id': 7, 'name': 'cad', 'hosts': [*HOSTS[:2]]}
    host = {'host': HOSTS[0], 'vcpus': 64, 'memory_mb': 65536}
    import_inventory(
        store,
        {
            'hosts': [{**host, 'resources': mine.get('host', {})}],
            'aggregates': [
                {**aggregate, 'resources': mine.get('aggregate', {})}
            ],
        },
    )


def stored(store: Store, kind: str) -> tuple[int, int, int] | None:
    """Return total, used and reported of the licences in the database."""
    table = schema.inventories.c
    query = sa.select(table.total, table.used, table.reported).where(
        table.host_id == PROVIDERS[kind], table.resource_class == CAD
    )
    with store.reading() as conn:
        row = conn.execute(query).first()
    return row and tuple(row)


def claim(store: Store, licences: int = 3, **how: Any) -> Any:
    """Return a claim of licences, which is written."""
    amounts = {'MEMORY_MB': 1024, CAD: licences}
    made = sharing_claim(load_snapshot(store), 0, amounts, **how)
    write_claims(store, made)
    return made


def release(store: Store, *claims: Any) -> None:
    uuids = [one.consumer for one in claims]
    store.write(lambda writer: lifecycle.release(writer, uuids))


def seen(store: Store, snapshot: Snapshot) -> set[int]:
    """Return totals of the licences as readers know them; empty: none."""
    with store.reading() as conn:
        exported = loading.export(conn)
        shared = pod_claims.shared(conn)
        followed = change_feed.refresh(conn, snapshot)
    tables = followed.hosts, load_snapshot(store).hosts
    known = [
        {total for total in table.resources[CAD].total.tolist() if total >= 0}
        if CAD in table.resources
        else set()
        for table in tables
    ]
    known.append(
        {
            each.resources[CAD].total
            for each in (*exported.hosts, *exported.aggregates)
            if CAD in each.resources
        }
    )
    assert known[0] == known[1] == known[2]
    assert bool(shared) == bool(exported.aggregates[0].resources)
    return known[0]


@each_provider
def test_a_class_stays_in_no_list_until_its_last_claim_is_released(
    store, kind
):
    offer(store, kind)
    snapshot = load_snapshot(store)
    first, second = claim(store), claim(store, 1)
    assert seen(store, snapshot) == {5}
    offer(store, kind, None)
    assert stored(store, kind) == (0, 4, 0)
    assert seen(store, snapshot) == set()
    with pytest.raises(ClaimLost):
        write_claims(
            store, sharing_claim(snapshot, 0, {'MEMORY_MB': 1024, CAD: 1})
        )
    release(store, first)
    assert stored(store, kind) == (0, 1, 0)
    assert seen(store, snapshot) == set()
    release(store, second)
    assert stored(store, kind) is None
    assert seen(store, snapshot) == set()
    assert audit_findings(store) == []


@each_provider
def test_a_class_that_comes_back_has_the_use_of_claims_that_are_left(
    store, kind
):
    offer(store, kind)
    first, second = claim(store), claim(store, 1)
    for _ in range(2):
        offer(store, kind, None)
        release(store, first)
        offer(store, kind)
        assert stored(store, kind) == (5, 1, 0)
        assert audit_findings(store) == []
    release(store, second)
    assert stored(store, kind) == (5, 0, 0)


@each_provider
def test_a_class_that_nobody_holds_goes_at_once(store, kind):
    offer(store, kind)
    release(store, claim(store))
    offer(store, kind, None)
    assert stored(store, kind) is None


def test_an_aggregate_that_is_removed_leaves_nothing(store):
    offer(store, 'aggregate')
    one = claim(store)
    store.write(lambda writer: aggregates.remove(writer, [7]))
    assert stored(store, 'aggregate') == (0, 3, 0)
    release(store, one)
    assert stored(store, 'aggregate') is None


@each_provider
def test_a_pod_holds_what_is_offered_only_later(store, kind):
    """It was seen where it runs, with what no list has."""
    offer(store, kind, None)
    shared = {CAD: PROVIDERS[kind]} if kind == 'aggregate' else {}
    pod = PodClaim('a', 'default/a', HOSTS[0], HOSTS[0],
                   {'MEMORY_MB': 1024, CAD: 2}, shared)  # fmt: skip
    store.write(lambda writer: pod_claims.confirm(writer, [pod]))
    assert stored(store, kind) == (0, 2, 0)
    offer(store, kind)
    assert stored(store, kind) == (5, 2, 0)
    offer(store, kind, None)
    store.write(lambda writer: pod_claims.release(writer, ['a']))
    assert stored(store, kind) is None
    assert audit_findings(store) == []


@each_provider
def test_an_audit_drops_what_is_left_of_a_class(store, kind):
    offer(store, kind)
    claim(store)
    offer(store, kind, None)
    (finding,) = audit_findings(store)
    assert finding.startswith('orphaned: 3 are allocated')
    store.write(audit.fix)
    assert stored(store, kind) is None


@each_provider
def test_a_release_in_one_round_trip_leaves_nothing_of_a_class(
    make_store, kind
):
    from scheduler_service.store.claims.pg_claims import PendingRelease

    store = make_store('postgresql')
    offer(store, kind)
    first, second = claim(store), claim(store, 1)
    offer(store, kind, None)
    for one, left in (first, (0, 1, 0)), (second, None):
        asked = {one.consumer: ReleaseRequest()}
        with store.hold() as held:
            conn = held.execution_options(isolation_level='AUTOCOMMIT')
            pending = PendingRelease(
                store, conn, asked, {one.consumer: None}, []
            )
            pending.finish()
            assert pending.wait().consumers == [one.consumer]
        assert stored(store, kind) == left


@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
@pytest.mark.parametrize('offered', [True, False])
@each_provider
def test_an_offer_waits_for_a_release_that_is_under_way(
    make_store, database, kind, offered
):
    """Of a class that is offered, or is not any more."""
    store = make_store(database)
    offer(store, kind)
    one = claim(store)
    offer(store, kind, None)
    if not offered:
        offer(store, kind, 4)
    thread = threading.Thread(
        target=offer, args=(store, kind, 5 if offered else None)
    )

    def work(writer: Any) -> None:
        lifecycle.release(writer, [one.consumer])
        thread.start()
        wait_until(lambda: waiting(store) or not thread.is_alive())

    store.write(work)
    thread.join()
    assert stored(store, kind) == ((5, 0, 0) if offered else None)
    assert audit_findings(store) == []


@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
@each_provider
def test_a_class_is_offered_though_its_last_claim_is_released_meanwhile(
    make_store, database, kind
):
    """The release comes between reading what is stored and changing it."""
    store = make_store(database)
    offer(store, kind)
    one = claim(store)
    offer(store, kind, None)
    mine, left = threading.get_ident(), [one]

    @listens(store, 'before_cursor_execute')
    def look(conn, cursor, statement, *_):
        changes = statement.startswith('UPDATE inventories SET total')
        if left and changes and threading.get_ident() == mine:
            thread = threading.Thread(target=release, args=(store, left.pop()))
            thread.start()
            thread.join()

    offer(store, kind)
    assert not left
    assert stored(store, kind) == (5, 0, 0)
    assert audit_findings(store) == []
