"""Snapshots that follow the changes of a store."""

from __future__ import annotations

import threading
import uuid

import msgspec
import pytest
import sqlalchemy as sa

from scheduler_service.model import ServerGroup
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import change_feed
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import server_groups
from tests.support.stores import (
    FULL_INVENTORY,
    POOL,
    assert_same_snapshot,
    claim_on,
    import_inventory,
    import_two_hosts,
    load_snapshot,
    move_of,
    new_claim,
    write_claims,
)

pytestmark = pytest.mark.db


def test_refresh_equals_a_fresh_load_when_anything_changed(store):
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
        refreshed = change_feed.refresh(conn, snapshot)
    assert_same_snapshot(refreshed, load_snapshot(store))
    assert refreshed.hosts.instances.get(one.consumer) is not None


def test_refresh_sees_that_a_host_is_gone_from_its_aggregates(store):
    """The two hosts differ only in the case of their names."""
    aggregate = dict(FULL_INVENTORY['aggregates'][0], hosts=['compute-1',
                     'Compute-1'])  # fmt: skip
    import_inventory(store, {**FULL_INVENTORY, 'aggregates': [aggregate]})
    snapshot = load_snapshot(store)
    left = store.write(lambda w: host_rows.remove_service_host(w, 'Compute-1'))
    assert [one.id for one in left] == [7]
    with store.reading() as conn:
        refreshed = change_feed.refresh(conn, snapshot)
    assert_same_snapshot(refreshed, load_snapshot(store))
    (found,) = refreshed.hosts.topology.aggregates.values()
    assert list(found.hosts) == ['compute-1']


def test_refresh_sees_each_change_of_claims_by_itself(store):
    """No other change of the same hosts tells of it."""
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0)
    move = move_of(snapshot, one.consumer)
    seen = {one.consumer: 'compute-1'}
    arrived = {one.consumer: move.host}
    for change in (
        lambda: write_claims(store, one),
        lambda: store.write(lambda w: lifecycle.confirm(w, seen)),
        lambda: write_claims(store, move),
        lambda: store.write(lambda w: lifecycle.confirm(w, arrived)),
        lambda: store.write(lambda w: lifecycle.release(w, [one.consumer])),
    ):
        change()
        with store.reading() as conn:
            snapshot = change_feed.refresh(conn, snapshot)
        assert_same_snapshot(snapshot, load_snapshot(store))


def test_an_instance_stays_that_was_released_and_claimed_again(store):
    """Others released it, and the snapshot has the daemon's own claim."""
    loaded = import_two_hosts(store)
    first, again = claim_on(loaded, 0), claim_on(loaded, 1)
    again = msgspec.structs.replace(again, consumer=first.consumer)
    write_claims(store, first)
    snapshot = load_snapshot(store)
    store.write(lambda w: lifecycle.release(w, [first.consumer]))
    revision = write_claims(store, again)
    now = load_snapshot(store)
    assert now.revision == revision
    assert now.lineage is not None
    with store.reading() as conn:
        refreshed = change_feed.refresh(
            conn, snapshot, own={revision: now.lineage}
        )
    placed = refreshed.hosts.instances.get(first.consumer)
    assert placed is not None
    assert placed.host == again.host


def test_refresh_loads_everything_when_changes_were_purged(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    for size in (1, 2, 3):
        import_inventory(
            store, {'hosts': [{'host': 'compute-9', 'vcpus': size}]}
        )
    store.write(lambda writer: change_feed.prune(writer.conn, -60))
    with store.reading() as conn:
        assert_same_snapshot(
            change_feed.refresh(conn, snapshot), load_snapshot(store)
        )


def test_nothing_is_pruned_when_nothing_was_ever_changed(store):
    assert store.write(lambda writer: change_feed.prune(writer.conn, 0)) == 0


def _touch(store, instance: str) -> None:
    store.write(lambda writer: writer.touched.instances.append(instance))


def _take_out(store, revision: int) -> dict[str, object]:
    """Delete a change, and return it."""
    table = schema.changes
    with store.engine.begin() as conn:
        row = conn.execute(
            sa.select(table).where(table.c.revision == revision)
        ).one()
        conn.execute(sa.delete(table).where(table.c.revision == revision))
    return dict(row._mapping)


def test_reader_looks_again_when_a_change_shows_before_an_earlier_one(store):
    import_inventory(store, FULL_INVENTORY)
    start = load_snapshot(store).revision
    for name in 'abc':
        _touch(store, name)
    hidden = _take_out(store, start + 2)

    def commit(*_: object) -> None:
        """Show the change once the first look at the changes is over."""
        if hidden:
            values = dict(hidden)
            hidden.clear()
            with store.engine.begin() as conn:
                conn.execute(sa.insert(schema.changes).values(values))

    sa.event.listen(store.engine, 'after_cursor_execute', commit)
    try:
        with store.reading() as conn:
            found = change_feed.since(conn, start)
    finally:
        sa.event.remove(store.engine, 'after_cursor_execute', commit)
    revisions = [one.revision for one in found]
    assert revisions == [start, start + 1, start + 2, start + 3]


def test_refresh_loads_everything_when_a_change_is_missing_between(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    for size in (1, 2, 3):
        import_inventory(
            store, {'hosts': [{'host': f'compute-{size}', 'vcpus': size}]}
        )
    _take_out(store, snapshot.revision + 2)
    with store.reading() as conn:
        assert_same_snapshot(
            change_feed.refresh(conn, snapshot), load_snapshot(store)
        )


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_reader_misses_no_change_when_eight_write(kind, make_store):
    """8 writers make 1,000 changes; a reader follows and misses none.

    Where MariaDB does not show one for a while, it sees that one is missing.
    """
    store = make_store(kind)
    _touch(store, 'before')
    first = load_snapshot(store).revision
    total, writers = 1_000, 8
    changes: list[change_feed.FeedEntry] = []
    done = threading.Event()

    def write(number: int) -> None:
        with store.hold() as conn:
            for turn in range(total // writers):

                def work(
                    writer: Writer, key: str = f'{number}-{turn}'
                ) -> None:
                    writer.touched.instances.append(key)

                store.write(work, conn)

    reader = threading.Thread(
        target=lambda: changes.extend(_followed(store, first, done))
    )
    threads = [
        threading.Thread(target=write, args=(n,)) for n in range(writers)
    ]
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    revisions = [change.revision for change in changes]
    assert revisions == list(range(first + 1, first + total + 1))
    seen = {key for change in changes for key in change.record().instances}
    assert len(seen) == total


def _followed(store, last: int, done: threading.Event):
    """Yield the changes after a revision until no more are made."""
    while True:
        finished = done.is_set()
        with store.reading() as conn:
            found = change_feed.since(conn, last)
        if change_feed.is_interrupted(found):
            continue
        new = [one for one in found if one.revision > last]
        yield from new
        if new:
            last = new[-1].revision
        elif finished:
            return


def test_a_new_server_group_without_members_is_announced(store):
    import_two_hosts(store)
    snapshot = load_snapshot(store)
    group = ServerGroup(uuid=str(uuid.uuid4()), policy='affinity')

    def put() -> bool:
        return store.write(lambda writer: server_groups.put(writer, group))

    assert put()
    assert not put()
    with store.reading() as conn:
        fresh = change_feed.refresh(conn, snapshot)
    assert fresh.hosts.groups == {group.uuid: group}
