"""The hottest statement of all, straight to PostgreSQL's driver.

What SQLAlchemy does around a statement shows beside one that takes half a
millisecond. What goes wrong is told in the words that the rest of the store
knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service import errors

# Deadlocks, and what could not be put in order with others.
_AGAIN = {'40P01': db_exception.DBDeadlock, '40001': db_exception.DBError}
# Classes of states that say: not the statement, but the server or the way to
# it. What the driver itself finds out about a connection has no state.
_AWAY = ('08', '53', '57', '58')


class Refused(Exception):
    """The database refused a statement; nothing of it was done.

    :ivar sqlstate: why, as the standard numbers it
    """

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f'{sqlstate}: {message}')
        self.sqlstate = sqlstate


def scalar(conn: Connection, statement: str, values: Mapping[str, Any]) -> Any:
    """Run a statement that commits by itself; return its only value.

    :param conn: in autocommit mode, of psycopg's dialect
    :raises Refused: by the database; nothing was done
    :raises DBDeadlock: others were in the way; to be tried again
    :raises DBError: it could not be put in order with others; likewise
    :raises StoreUnavailable: it is not known whether anything was done
    """
    raw: Any = conn.connection.dbapi_connection
    try:
        with raw.cursor() as cursor:
            (found,) = cursor.execute(statement, values).fetchone()
            return found
    except conn.dialect.dbapi.Error as fault:  # type: ignore[union-attr]
        raise _translated(fault) from fault


def _translated(fault: Any) -> Exception:
    state = fault.sqlstate
    if state in _AGAIN:
        translated: Exception = _AGAIN[state](fault)
        return translated
    if state is None or state[:2] in _AWAY:
        return errors.StoreUnavailable(
            f'The database does not answer: {str(fault).strip()[:300]}'
        )
    return Refused(state, str(fault).strip()[:300])
