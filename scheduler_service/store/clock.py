"""The database's clock, which all daemons share; theirs may differ.

Every time that the store keeps or compares is taken from it, in seconds since
the epoch.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

_SQL = {
    'postgresql': 'CAST(extract(epoch FROM clock_timestamp()) '
    'AS double precision)',
    # UNIX_TIMESTAMP(NOW()) is ambiguous for an hour when summer time ends.
    'mysql': "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) "
    '/ 1e6)',
    'sqlite': "((julianday('now') - 2440587.5) * 86400.0)",
}


class _Now(FunctionElement[float]):
    """Of a kind that SQLAlchemy keeps compiled statements with."""

    inherit_cache = True
    type = sa.Double()


@compiles(_Now)
def _compile(element: _Now, compiler: Any, **how: Any) -> str:
    return sql(compiler.dialect.name)


# The time as an expression, for values and conditions of statements.
NOW = _Now()
_SELECT_NOW = sa.select(NOW)


def sql(dialect: str) -> str:
    """Return SQL for the time."""
    return _SQL[dialect]


def read(conn: Connection) -> float:
    """Return the time."""
    return float(conn.execute(_SELECT_NOW).scalar_one())
