"""How far a mirror has filled the store."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.records import mirror_progress
from scheduler_service.store.records.mirror_progress import Progress
from tests.support.stores import import_two_hosts


def read(store):
    with store.reading() as conn:
        return mirror_progress.read(conn)


def record(store, progress):
    store.write(lambda writer: mirror_progress.record(writer, progress))


def test_progress_is_never_less_than_before(store):
    assert read(store) == Progress.NOTHING
    for progress, reached in (
        (Progress.NOTHING, Progress.NOTHING),
        (Progress.HOSTS, Progress.HOSTS),
        (Progress.NOTHING, Progress.HOSTS),
        (Progress.CAPACITY, Progress.CAPACITY),
        (Progress.HOSTS, Progress.CAPACITY),
    ):
        record(store, progress)
        assert read(store) == reached


@pytest.mark.parametrize('recorded', [False, True])
def test_hosts_count_only_where_nothing_was_recorded(store, recorded):
    if recorded:
        record(store, Progress.NOTHING)
    import_two_hosts(store)
    # Hosts that are in no cell are not mirrored.
    assert read(store) == Progress.NOTHING
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.hosts).values(cell_uuid='c'))
    reached = Progress.NOTHING if recorded else Progress.CAPACITY
    assert read(store) == reached
    record(store, Progress.NOTHING)
    assert read(store) == reached
