"""Transactions, revisions, and what a database in trouble raises."""

import sqlite3
import threading
import time

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import (
    ChangeRecord,
    Store,
    next_number,
)
from scheduler_service.store.driver_errors import translate_errors
from scheduler_service.store.reading import change_feed


def changes(store: Store) -> list[tuple[int, ChangeRecord]]:
    with store.reading() as conn:
        found = change_feed.since(conn, 0)
    return [(one.revision, one.record()) for one in found]


def test_revision_is_taken_when_a_transaction_changes_something(store):
    for uuid in ('a', 'b'):
        store.write(lambda w, uuid=uuid: w.touched.instances.append(uuid))
    assert changes(store) == [
        (1, ChangeRecord(instances=['a'])),
        (2, ChangeRecord(instances=['b'])),
    ]


def test_no_revision_is_taken_when_nothing_changes(store):
    assert store.write(lambda writer: 'result') == 'result'
    assert changes(store) == []


def test_nothing_is_written_when_the_work_raises(store):
    def work(writer):
        writer.touched.instances.append('a')
        next_number(writer.conn, 'host_id', 5)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.write(work)
    assert changes(store) == []


def test_work_is_repeated_and_counted_when_it_meets_a_deadlock(store):
    reasons, runs = [], []
    store.on_retry = reasons.append

    def work(writer):
        runs.append(1)
        writer.touched.instances.append('a')
        if len(runs) < 3:
            raise db_exception.DBDeadlock
        return 'done'

    assert store.write(work) == 'done'
    assert reasons == ['deadlock', 'deadlock']
    # What the runs before did is undone.
    assert changes(store) == [(1, ChangeRecord(instances=['a']))]


def test_a_second_transaction_starts_when_the_first_has_ended(store):
    """SQLite would refuse the second one's writes after it has read."""
    steps, started = [], threading.Event()

    def work(name):
        def write(writer):
            steps.append(f'{name} starts')
            count = changes_in(writer)
            started.set()
            time.sleep(0.2)
            writer.touched.instances.append(name)
            steps.append(f'{name} ends after {count}')

        store.write(write)

    def changes_in(writer):
        return len(list(change_feed.since(writer.conn, 0)))

    first = threading.Thread(target=work, args=('first',))
    first.start()
    started.wait()
    work('second')
    first.join()
    assert steps == [
        'first starts', 'first ends after 0',
        'second starts', 'second ends after 1',
    ]  # fmt: skip


def test_revisions_have_no_gap_when_threads_write(store):
    def write():
        for _ in range(10):
            store.write(lambda writer: writer.touched.instances.append('a'))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [revision for revision, _ in changes(store)] == list(range(1, 41))


def test_store_is_unavailable_when_there_are_no_tables(tmp_path):
    store = Store.connect(f'sqlite:///{tmp_path}/a.sqlite')
    with (
        pytest.raises(errors.StoreUnavailable, match='db sync'),
        store.reading() as conn,
    ):
        conn.execute(sa.select(schema.hosts))
    store.dispose()


def test_store_is_unavailable_when_the_file_cannot_be_opened(tmp_path):
    store = Store.connect(f'sqlite:///{tmp_path}/none/a.sqlite')
    with pytest.raises(errors.StoreUnavailable, match='unable to open'):
        store.write(lambda writer: None)
    store.dispose()


@pytest.mark.parametrize(
    'url', ['', 'nonsense', 'nodatabase://x', 'mysql+nodriver://x']
)
def test_url_is_refused_when_it_cannot_be_used(url):
    with pytest.raises(errors.ConfigurationError, match=r'\[database\]'):
        Store.connect(url)


@pytest.mark.parametrize(
    'url',
    [
        'postgresql+psycopg://u:sec@ret:secret@127.0.0.1:1/x',
        'postgresql+psycopg://u:secret@[::1/x',
    ],
)
def test_password_is_not_shown_when_it_makes_the_url_unreadable(url):
    with pytest.raises(errors.ConfigurationError) as caught:
        Store.connect(url)
    assert 'write @ as %40' in str(caught.value)
    assert 'secret' not in str(caught.value)


def test_other_errors_are_raised_unchanged_when_the_statement_is_wrong():
    fault = sa.exc.IntegrityError('x', {}, sqlite3.IntegrityError())
    with pytest.raises(sa.exc.IntegrityError), translate_errors():
        raise fault


def test_counter_is_advanced_by_as_many_as_asked_for(store):
    with store.engine.begin() as conn:
        before = next_number(conn, 'revision')
        assert next_number(conn, 'revision', 5) == before + 5


@pytest.mark.parametrize(
    'fault',
    [
        sa.exc.OperationalError(
            'x', {}, pymysql.err.OperationalError(1205, 'Lock wait timeout')
        ),
        sa.exc.OperationalError(
            'x', {}, pymysql.err.OperationalError(1969, 'max_statement_time')
        ),
        sa.exc.OperationalError('x', {}, psycopg.errors.LockNotAvailable()),
        sa.exc.OperationalError('x', {}, psycopg.errors.QueryCanceled()),
        sa.exc.OperationalError(
            'x', {}, sqlite3.OperationalError('database is locked')
        ),
        # Deadlocks, and conflicts on Galera, that no repetition ended.
        db_exception.DBDeadlock(),
    ],
)
def test_store_takes_too_long_when_a_lock_cannot_be_had(fault):
    with pytest.raises(errors.StoreTimeout), translate_errors():
        raise fault


def test_lock_timeout_is_not_repeated_when_oslo_takes_it_for_a_deadlock(
    store,
):
    runs = []

    def work(writer):
        runs.append(1)
        raise db_exception.DBDeadlock(
            sa.exc.OperationalError(
                'x', {}, pymysql.err.OperationalError(1205, 'Lock wait')
            )
        )

    with pytest.raises(errors.StoreTimeout):
        store.write(work)
    assert len(runs) == 1
