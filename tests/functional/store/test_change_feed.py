"""Snapshots that follow the changes of a store."""

from __future__ import annotations

import threading
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import change_feed
from tests.support.stores import (
    FULL_INVENTORY,
    POOL,
    assert_same_snapshot,
    import_inventory,
    load_snapshot,
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
            found = [one for one in found if one.revision > last]
            for one in found:
                revisions.append(one.revision)
                seen.extend(one.record().instances)
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
