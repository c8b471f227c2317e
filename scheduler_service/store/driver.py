"""The hottest statement of all, straight to PostgreSQL's client library.

What SQLAlchemy and the driver do around a statement shows beside one that
takes half a millisecond. And here it can be sent first and asked for later,
so that something else is done while the database works. What goes wrong is
told in the words that the rest of the store knows.
"""

from __future__ import annotations

import functools
import hashlib
import select
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa
from oslo_db import exception as db_exception
from psycopg import pq
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import arrays
from scheduler_service.store.connection import first_line

# Deadlocks, and what could not be put in order with others.
_AGAIN: dict[str, Any] = {
    '40P01': db_exception.DBDeadlock,
    '40001': db_exception.DBError,
}
# Classes of states that say: not the statement, but the server or the way to
# it. What the library itself finds out about a connection has no state.
_AWAY = ('08', '53', '57', '58')
_NOT_PREPARED = '26000'
_NOT_TEXT = '22021'
_PREPARED = 'scheduler_prepared'


class Refused(Exception):
    """The database refused a statement; nothing of it was done.

    :ivar sqlstate: why, as the standard numbers it
    """

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f'{sqlstate}: {message}')
        self.sqlstate = sqlstate


class Statement(NamedTuple):
    """A statement that returns one value, as the server prepares it.

    :ivar order: names of its parameters, in the order of their numbers
    """

    name: bytes
    text: bytes
    order: tuple[str, ...]

    @classmethod
    @functools.cache
    def of(cls, text: str) -> Statement:
        """Return the statement of SQL with ``:named`` parameters."""
        dialect = PGDialect(paramstyle='numeric_dollar')  # type: ignore[no-untyped-call]
        compiled: Any = sa.text(text).compile(dialect=dialect)
        made = str(compiled).encode()
        name = 'claim_' + hashlib.sha256(made).hexdigest()[:16]
        return cls(name.encode(), made, tuple(compiled.positiontup or ()))


class Bound(NamedTuple):
    """A statement with its values, as they travel.

    :ivar formats: of each value, 0 for text, 1 for binary
    """

    statement: Statement
    values: list[bytes | None]
    formats: list[int]

    @classmethod
    def of(cls, text: str, values: Mapping[str, Any]) -> Bound:
        """Return a statement with values for its parameters.

        :param text: SQL with ``:named`` parameters
        :raises Refused: it cannot be asked with such a value
        """
        statement = Statement.of(text)
        encoded = [_encoded(values[name]) for name in statement.order]
        return cls(
            statement,
            [value for value, _ in encoded],
            [form for _, form in encoded],
        )


class Sent:
    """A statement that the database works at; it commits by itself.

    Nothing else may be asked on the connection until it is received.

    :param conn: in autocommit mode, of psycopg's dialect
    :raises Refused: it cannot be prepared
    :raises StoreUnavailable: it is not known whether anything will be done
    """

    def __init__(self, conn: Connection, bound: Bound) -> None:
        raw: Any = conn.connection.dbapi_connection
        self._pg: pq.abc.PGconn = raw.pgconn
        self._prepared: set[bytes] = conn.info.setdefault(_PREPARED, set())
        self._bound = bound
        try:
            self._send()
        except psycopg.Error as fault:
            raise _away(fault) from fault

    def receive(self) -> Any:
        """Wait for the only value of the statement.

        :raises Refused: by the database; nothing was done
        :raises DBDeadlock: others were in the way; to be tried again
        :raises DBError: it could not be put in order with others; likewise
        :raises StoreUnavailable: it is not known whether anything was done
        """
        try:
            result = self._result()
            if _state(result) == _NOT_PREPARED:
                # Somebody let go of what was prepared; nothing was done.
                self._prepared.discard(self._bound.statement.name)
                self._send()
                result = self._result()
        except psycopg.Error as fault:
            raise _away(fault) from fault
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise _fault(result)
        value = result.get_value(0, 0)
        return None if value is None else value.decode()

    def _send(self) -> None:
        (name, text, _), values, formats = self._bound
        if name not in self._prepared:
            self._pg.send_prepare(name, text)
            self._flush()
            prepared = self._result()
            if prepared.status != pq.ExecStatus.COMMAND_OK:
                raise _fault(prepared)
            self._prepared.add(name)
        self._pg.send_query_prepared(name, values, formats)
        self._flush()

    def _flush(self) -> None:
        """Hand over to the system all that is to be sent."""
        while self._pg.flush():
            if self._wait(select.POLLOUT | select.POLLIN) & select.POLLIN:
                self._pg.consume_input()

    def _result(self) -> pq.abc.PGresult:
        """Wait for the result of what was sent last."""
        found: pq.abc.PGresult | None = None
        while True:
            while self._pg.is_busy():
                self._wait(select.POLLIN)
                self._pg.consume_input()
            result = self._pg.get_result()
            if result is None:
                break
            found = result
        if found is None:
            raise psycopg.OperationalError('there is no result')
        return found

    def _wait(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._pg.socket, events)
        return poll.poll()[0][1]


def _encoded(value: Any) -> tuple[bytes | None, int]:
    """Return a value as the server takes it, and 0 for text, 1 for binary."""
    if value is None:
        return None, pq.Format.TEXT
    if isinstance(value, arrays.Column):
        return arrays.encoded(value), pq.Format.BINARY
    text = str(value)
    if '\0' in text:
        # The library would send what is before it.
        raise Refused(_NOT_TEXT, 'text with NUL')
    return text.encode(), pq.Format.TEXT


def _state(result: pq.abc.PGresult) -> str | None:
    found = result.error_field(pq.DiagnosticField.SQLSTATE)
    return None if found is None else found.decode()


def _fault(result: pq.abc.PGresult) -> Exception:
    """Return what a result that is none says, in the store's words."""
    state = _state(result)
    message = result.error_message.decode(errors='replace').strip()[:300]
    if state is None or state[:2] in _AWAY:
        return _away(psycopg.OperationalError(message))
    refused = Refused(state, message)
    found: Exception = _AGAIN[state](refused) if state in _AGAIN else refused
    return found


def _away(fault: Exception) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(
        f'The database does not answer: {first_line(fault)}'
    )
