"""Queries that are sent together, in one round trip, where that can be.

PostgreSQL takes them in libpq's pipeline mode. Elsewhere each is sent when its
answer is asked for. It belongs to the thread that owns the connection.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy.engine import Connection

# A query of which the parameter ``keys`` are so many at most.
_MOST_KEYS = 500
# A statement with the parameter ``keys``, and their values.
Query = tuple[Any, list[Any]]


def send(conn: Connection, queries: Sequence[Query]) -> Connection:
    """Send queries; return a connection that has their answers.

    Their answers are given to who executes them there, and every other query
    is executed as on the connection itself.

    :param conn: in autocommit mode
    """
    some = [(query, keys) for query, keys in queries
            if keys and len(keys) <= _MOST_KEYS]  # fmt: skip
    if conn.dialect.name != 'postgresql' or len(some) < 2:
        return conn
    from psycopg.rows import namedtuple_row

    from scheduler_service.store.postgresql import ARRAY_TYPES

    raw: Any = conn.connection.dbapi_connection
    cursors = []
    with raw.pipeline():
        for query, keys in some:
            cursor = raw.cursor(row_factory=namedtuple_row)
            kind = 'int' if isinstance(keys[0], int) else 'text'
            cursor.execute(
                _text(query, conn.dialect),
                {'keys': ARRAY_TYPES[kind](keys)},
            )
            cursors.append(cursor)
    answers = {
        (id(query), tuple(keys)): cursor.fetchall()
        for (query, keys), cursor in zip(some, cursors, strict=True)
    }
    return cast(Connection, _Answered(conn, answers))


@functools.lru_cache(maxsize=32)
def _text(query: Any, dialect: Any) -> str:
    """Return a query as psycopg takes it."""
    return str(query.compile(dialect=dialect))


class _Answered:
    """A connection with answers to some queries."""

    def __init__(
        self, conn: Connection, answers: dict[tuple[int, Any], list[Any]]
    ) -> None:
        self._conn = conn
        self._answers = answers

    def execute(self, query: Any, values: Any = None) -> Any:
        """Return the rows of a query."""
        if values and 'keys' in values:
            found = self._answers.get((id(query), tuple(values['keys'])))
            if found is not None:
                return _Rows(found)
        return self._conn.execute(query, values)


class _Rows(list[Any]):
    """Rows, which may be asked for as a result's."""

    def all(self) -> list[Any]:
        """Return the rows."""
        return self
