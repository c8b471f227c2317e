"""Statements that are sent to PostgreSQL without waiting, and its errors."""

import json
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.store import postgresql, rows
from scheduler_service.store.claims import pg_statements
from scheduler_service.store.connection import Store
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db


def scalar(conn: Any, text: str, values: dict[str, Any]) -> Any:
    return pg_statements.PendingStatements(
        conn, [pg_statements.BoundStatement.of(sa.text(text), values)]
    ).receive()


RAISED = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{}'; END $$"


@pytest.fixture
def store(make_store) -> Store:
    return make_store('postgresql')


@pytest.fixture
def single(store):
    with store.hold() as conn:
        yield conn.execution_options(isolation_level='AUTOCOMMIT')


def test_error_has_its_sqlstate_when_a_statement_is_refused(single):
    with pytest.raises(pg_statements.StatementError) as caught:
        scalar(single, 'SELECT 1 / 0', {})
    assert caught.value.sqlstate == '22012'
    # The connection is as good as before.
    assert scalar(single, 'SELECT 1', {}) == '1'


@pytest.mark.parametrize(
    ('state', 'kind', 'reason'),
    [
        ('40P01', db_exception.DBDeadlock, 'deadlock'),
        ('40001', db_exception.DBError, 'serialization'),
    ],
)
def test_statement_is_repeated_and_counted_when_it_collides(
    store, single, state, kind, reason
):
    counted = []
    store.on_retry = counted.append
    tried = []

    def work() -> int:
        tried.append(1)
        if len(tried) < 3:
            scalar(single, RAISED.format(state), {})
        return 7

    assert store.run(work) == 7
    assert counted == [reason] * 2
    with pytest.raises(kind):
        scalar(single, RAISED.format(state), {})


@pytest.mark.parametrize('state', ['57P01', '53100', '08006'])
def test_store_is_unavailable_when_the_server_is_in_trouble(single, state):
    with pytest.raises(errors.StoreUnavailable):
        scalar(single, RAISED.format(state), {})


def test_store_is_unavailable_when_the_connection_is_lost(store, single):
    pid = scalar(single, 'SELECT pg_backend_pid()', {})
    with store.reading() as other:
        other.exec_driver_sql(f'SELECT pg_terminate_backend({pid})')
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable) as caught:
            scalar(single, 'SELECT 1', {})
        assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('kind', 'values'),
    [
        ('text', ['a"\\b\n,{}', 'h\u00f6st', None, '', 'NULL']),
        ('text', [None, None]),
        ('int', [0, -1, 2**62, None]),
        ('float', [0.5, -1e300, None]),
        ('text', []),
    ],
)
def test_columns_arrive_unchanged_when_sent_as_arrays(single, kind, values):
    columns = {'number': 'int', 'value': kind}
    sent = list(enumerate(values))
    source = rows.source('postgresql', columns)
    packed = rows.pack('postgresql', columns, sent)
    told = f'SELECT json_agg(value ORDER BY number) FROM {source}'
    assert json.loads(scalar(single, told, packed) or '[]') == values


def test_wait_is_broken_off_when_the_database_seems_to_be_away(store, single):
    """Another thread finds that it does not answer, before any limit does."""
    slow = pg_statements.BoundStatement.of(
        sa.text("SELECT 'x' FROM pg_sleep(60)"), {}
    )
    sent = pg_statements.PendingStatements(single, [slow])
    faults: list[Exception] = []

    def receive() -> None:
        try:
            sent.receive()
        except errors.StoreUnavailable as fault:
            faults.append(fault)

    waiter = threading.Thread(target=receive)
    waiter.start()
    wait_until(lambda: store.sessions.waits(0.0))
    store.sessions.abort()
    waiter.join(LIMIT_S)
    assert not waiter.is_alive()
    assert len(faults) == 1


def test_large_values_are_sent_when_the_socket_takes_them_in_parts(single):
    large = 'x' * 20_000_000
    asked = 'SELECT length(CAST(:large AS text))'
    assert scalar(single, asked, {'large': large}) == str(len(large))


@pytest.mark.parametrize('kind', ['plain', 'packed'])
def test_text_is_refused_when_it_holds_nul(single, kind):
    text, value = 'SELECT CAST(:a AS text)', 'a\0b'
    values: dict[str, Any] = {'a': value}
    if kind == 'packed':
        text = 'SELECT CAST(:a AS text[])'
        values = {'a': postgresql.TextColumn([value])}
    with pytest.raises(pg_statements.StatementError) as caught:
        scalar(single, text, values)
    assert caught.value.sqlstate == '22021'
    assert scalar(single, 'SELECT 1', {}) == '1'


def test_statement_is_refused_when_it_cannot_be_prepared(single):
    for _ in range(2):
        with pytest.raises(pg_statements.StatementError) as caught:
            scalar(single, 'SELECT nothing_of_the_kind', {})
        assert caught.value.sqlstate == '42703'
    assert scalar(single, 'SELECT 1', {}) == '1'


def test_several_statements_are_one_transaction(single):
    single.exec_driver_sql('CREATE TEMP TABLE kept (n int)')
    insert = 'INSERT INTO kept VALUES (CAST(:n AS int)) RETURNING n'
    count = 'SELECT count(*) FROM kept'

    def send(*statements: tuple[str, dict[str, Any]]) -> Any:
        bound = [
            pg_statements.BoundStatement.of(sa.text(text), values)
            for text, values in statements
        ]
        return pg_statements.PendingStatements(single, bound).receive()

    for failing in ('SELECT 1 / 0', "SELECT CAST('x' AS int)"):
        with pytest.raises(pg_statements.StatementError):
            send((insert, {'n': 1}), (failing, {}), (count, {}))
        assert scalar(single, count, {}) == '0'
    assert send((insert, {'n': 1}), (insert, {'n': 2}), (count, {})) == '2'
    single.exec_driver_sql('DEALLOCATE ALL')
    assert send((insert, {'n': 3}), (count, {})) == '3'
    statement = pg_statements.Statement.of(sa.text(count))
    single.exec_driver_sql(f'DEALLOCATE {statement.name.decode()}')
    assert send((insert, {'n': 4}), (count, {})) == '4'


def test_transactions_travel_together_and_fail_alone(store, single):
    """The second one fails where it is prepared, the third one later."""
    single.exec_driver_sql('CREATE TEMP TABLE kept (n int UNIQUE)')
    insert = 'INSERT INTO kept VALUES (CAST(:n AS int)) RETURNING n'
    missing = 'SELECT nothing_of_the_kind'
    waits = "SELECT 'x' FROM pg_advisory_xact_lock(1)"
    with store.engine.begin() as holder:
        # Nobody waits for its answer before the next one is sent.
        holder.exec_driver_sql('SELECT pg_advisory_xact_lock(1)')
        sent = [
            pg_statements.PendingStatements(
                single,
                [pg_statements.BoundStatement.of(sa.text(text), values)
                 for text, values in statements],
            )
            for statements in (
                [(waits, {}), (insert, {'n': 1})],
                [(insert, {'n': 2}), (missing, {})],
                [(insert, {'n': 1}), ('SELECT 6', {})],
                [('SELECT 6', {}), (insert, {'n': 3})],
            )
        ]  # fmt: skip
    # Whichever is waited for first.
    assert sent[3].receive() == '3'
    assert sent[0].receive() == '1'
    for failed, state in ((sent[1], '42703'), (sent[2], '23505')):
        with pytest.raises(pg_statements.StatementError) as caught:
            failed.receive()
        assert caught.value.sqlstate == state
    kept = 'SELECT string_agg(CAST(n AS text), :by ORDER BY n) FROM kept'
    assert scalar(single, kept, {'by': ' '}) == '1 3'
    with pytest.raises(pg_statements.StatementError):
        scalar(single, missing, {})
