"""Prepared statements sent to PostgreSQL through its client library, libpq.

Only the thread that owns the connection may use it here. SQLAlchemy and
psycopg add a noticeable share to a statement of half a millisecond. This also
separates sending from receiving, so that the caller can work while the
database does. Errors become the exceptions that the rest of the store knows.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa
from oslo_db import exception as db_exception
from psycopg import pq
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import driver_errors
from scheduler_service.store.connection import Store
from scheduler_service.store.postgresql import PostgreSQLSession, column

# Deadlocks and serialization failures: Store.run tries again.
_RETRYABLE: dict[str, Any] = {
    '40P01': db_exception.DBDeadlock,
    '40001': db_exception.DBError,
}
# Classes of states that concern the server or the connection, not the
# statement. Errors that libpq itself finds in a connection have no state.
_UNAVAILABLE = ('08', '53', '57', '58')
_NOT_PREPARED = '26000'
# A transaction that was under way prepared it. The name is of the same text.
_IS_PREPARED = '42P05'
_NOT_TEXT = '22021'
_PREPARED = 'scheduler_prepared'
_UNDER_WAY = 'scheduler_under_way'
_DONE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_TICK_MS = 100


class StatementError(Exception):
    """The database refused a statement; nothing of it was done.

    :ivar sqlstate: the standard's code of the reason
    :ivar message: as the server words it
    """

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f'{sqlstate}: {message}')
        self.sqlstate, self.message = sqlstate, message


class Statement(NamedTuple):
    """A statement as the server prepares it.

    :ivar order: names of its parameters, in the order of their numbers
    """

    name: bytes
    text: bytes
    order: tuple[str, ...]

    @classmethod
    @functools.cache
    def of(cls, statement: sa.ClauseElement, form: str = '{}') -> Statement:
        """Return a statement that was built for SQLAlchemy.

        :param form: SQL around it; a second pair of braces is one more
            parameter, ``changes``
        """
        dialect = PGDialect(paramstyle='numeric_dollar')  # type: ignore[no-untyped-call]
        compiled: Any = statement.compile(dialect=dialect)
        order = tuple(compiled.positiontup or ())
        text = form.format(compiled, f'${len(order) + 1}')
        if form.count('{}') > 1:
            order += ('changes',)
        encoded = text.encode()
        name = 'claim_' + hashlib.sha256(encoded).hexdigest()[:16]
        return cls(name.encode(), encoded, order)


class BoundStatement(NamedTuple):
    """A statement with its encoded values.

    :ivar formats: of each value, 0 for text, 1 for binary
    """

    statement: Statement
    values: list[bytes | None]
    formats: list[int]

    @classmethod
    def of(
        cls,
        statement: sa.ClauseElement,
        values: Mapping[str, Any],
        form: str = '{}',
    ) -> BoundStatement:
        """Return a statement with values for its parameters.

        :param form: as for :meth:`Statement.of`
        :raises StatementError: a value cannot be sent
        """
        prepared = Statement.of(statement, form)
        encoded = [_encode(values[name]) for name in prepared.order]
        return cls(
            prepared,
            [value for value, _ in encoded],
            [binary for _, binary in encoded],
        )


class PendingStatements:
    """Statements that the database executes as one transaction.

    The constructor sends them, in libpq's pipeline mode, and those that the
    server does not have yet to be prepared with them. The server runs each on
    a snapshot of its own, and none after a failed statement. Several such
    transactions may be under way on a connection, one after the other; nothing
    else may be sent on it until :meth:`receive` of the last one returned.

    :param conn: in autocommit mode, of SQLAlchemy's psycopg dialect
    :param statements: in the order to execute them in; each returns rows
    :raises StoreUnavailable: the transaction may be committed or not
    """

    def __init__(
        self, conn: Connection, statements: Sequence[BoundStatement]
    ) -> None:
        raw: Any = conn.connection.dbapi_connection
        self._session: PostgreSQLSession = raw
        self._since = time.monotonic()
        self._pg: pq.abc.PGconn = raw.pgconn
        self._prepared: set[bytes] = conn.info.setdefault(_PREPARED, set())
        self._under_way: collections.deque[PendingStatements] = (
            conn.info.setdefault(_UNDER_WAY, collections.deque())
        )
        self._statements = statements
        # The statements that are prepared with these.
        self._new: list[bytes] = []
        self._result: pq.abc.PGresult | None = None
        try:
            self._send()
        except psycopg.Error as fault:
            raise driver_errors.unavailable(fault) from fault

    def receive(self) -> Any:
        """Wait for the first value that the last statement returns.

        :raises StatementError: a statement was refused; nothing was done
        :raises DBDeadlock: a deadlock; nothing was done, try again
        :raises DBError: a serialization failure; likewise
        :raises StoreUnavailable: the transaction may be committed or not
        """
        try:
            result = self._wait()
            while _state(result) == _NOT_PREPARED:
                # The prepared statements were dropped; nothing was done.
                self._send()
                result = self._wait()
        except psycopg.Error as fault:
            raise driver_errors.unavailable(fault) from fault
        self._session.aborted = False
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise _error(result)
        value = result.get_value(0, 0)
        return None if value is None else value.decode()

    def _send(self) -> None:
        if not self._under_way:
            self._pg.enter_pipeline_mode()
        self._under_way.append(self)
        for statement, _, _ in self._statements:
            if statement.name not in self._prepared:
                self._pg.send_prepare(statement.name, statement.text)
                # A transaction of its own: it stays where the others fail.
                self._pg.pipeline_sync()
                self._prepared.add(statement.name)
                self._new.append(statement.name)
        for statement, values, formats in self._statements:
            self._pg.send_query_prepared(statement.name, values, formats)
        self._pg.pipeline_sync()
        self._flush()

    def _wait(self) -> pq.abc.PGresult:
        """Wait for the results, also of transactions that were sent before.

        :return: the result of the failed statement, else of the last
        """
        while self._result is None:
            self._under_way[0]._receive()
            self._under_way.popleft()
            if not self._under_way:
                self._pg.exit_pipeline_mode()
        result, self._result = self._result, None
        return result

    def _receive(self) -> None:
        result: pq.abc.PGresult | None = None
        for name in self._new:
            prepared = self._last_result()
            self._end_transaction()
            if prepared.status in _DONE or _state(prepared) == _IS_PREPARED:
                continue
            self._prepared.discard(name)
            result = result or prepared
        self._new.clear()
        failed = result is not None
        for statement, _, _ in self._statements:
            received = self._last_result()
            if _state(received) == _NOT_PREPARED:
                self._prepared.discard(statement.name)
            if not failed:
                result, failed = received, received.status not in _DONE
        self._end_transaction()
        self._result = result

    def _end_transaction(self) -> None:
        end = self._next_result()
        if end is None or end.status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError('the transaction did not end')

    def _flush(self) -> None:
        while self._pg.flush():
            if self._poll(select.POLLOUT | select.POLLIN) & select.POLLIN:
                self._pg.consume_input()

    def _last_result(self) -> pq.abc.PGresult:
        last: pq.abc.PGresult | None = None
        while (result := self._next_result()) is not None:
            last = result
        if last is None:
            raise psycopg.OperationalError('the server sent no result')
        return last

    def _next_result(self) -> pq.abc.PGresult | None:
        """Wait for a result; None: the statement has no more results."""
        while self._pg.is_busy():
            self._poll(select.POLLIN)
            self._pg.consume_input()
        return self._pg.get_result()

    def _poll(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._pg.socket, events)
        self._session.waits_since = self._since
        while not (ready := poll.poll(_TICK_MS)):
            self._session.check_wait(self._since)
        self._session.waits_since = None
        return ready[0][1]


def send(
    store: Store, conn: Connection, statements: Sequence[BoundStatement]
) -> Callable[[], Any]:
    """Send statements as one transaction.

    :return: waits for the value; after a deadlock it sends them again
    """
    sent = [PendingStatements(conn, statements)]

    def receive() -> Any:
        pending = sent.pop() if sent else PendingStatements(conn, statements)
        return pending.receive()

    return lambda: store.run(receive)


def _encode(value: Any) -> tuple[bytes | None, int]:
    """Return a value as the server takes it, and 0 for text, 1 for binary."""
    if value is None:
        return None, pq.Format.TEXT
    if isinstance(value, list):
        return column(value).encode(), pq.Format.BINARY
    text = str(value)
    if '\0' in text:
        # libpq would send only what is before the NUL.
        raise StatementError(_NOT_TEXT, 'text with NUL')
    return text.encode(), pq.Format.TEXT


def _state(result: pq.abc.PGresult) -> str | None:
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    return None if state is None else state.decode()


def _error(result: pq.abc.PGresult) -> Exception:
    state = _state(result)
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    said = (text or result.error_message).decode(errors='replace')
    message = said.strip()[:300]
    if state in driver_errors.PG_TIMEOUTS:
        return errors.StoreTimeout(f'The database takes too long: {message}')
    meaning = driver_errors.meaning(state)
    if meaning is not None:
        return errors.StoreUnavailable(f'{meaning}: {message}')
    if state is None or state[:2] in _UNAVAILABLE:
        return driver_errors.unavailable(psycopg.OperationalError(message))
    refused = StatementError(state, message)
    error: Exception = (
        _RETRYABLE[state](refused) if state in _RETRYABLE else refused
    )
    return error
