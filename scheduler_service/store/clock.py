"""The database's clock, which all daemons share; theirs may differ.

Every time that the store keeps or compares is taken from it, in seconds since
the epoch. It may step, such as when another server with another clock becomes
the primary: then the age of what was stored before is not known.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

LOG = logging.getLogger(__name__)
# What counts as a step: a difference to the daemon's own clock, in seconds,
# plus a fraction of the time since the last look, since clocks are slewed.
_STEP_S = 1.0
_SLEW = 0.001
_SQL = {
    'postgresql': 'CAST(extract(epoch FROM clock_timestamp()) '
    'AS double precision)',
    # UNIX_TIMESTAMP(NOW()) is ambiguous for an hour when summer time ends.
    'mysql': "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) "
    '/ 1e6)',
    # In milliseconds, as times are printed: what is read is not later.
    'sqlite': "round((julianday('now') - 2440587.5) * 86400.0, 3)",
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


def at(moment: float) -> sa.ColumnElement[float]:
    """Return the time at a moment of ``time.monotonic``, as an expression."""
    return NOW - (time.monotonic() - moment)


class SteadyClock:
    """Reads the time, and notices steps by the daemon's monotonic clock.

    It belongs to one thread, which has to read it often.
    """

    def __init__(self) -> None:
        # By how much the database's clock was ahead, and when that was read.
        self._ahead = math.nan
        self._read_at = self._steady_since = 0.0

    def read(self, conn: Connection) -> float:
        """Return the time."""
        start = time.monotonic()
        now = read(conn)
        end = time.monotonic()
        step, self._ahead = now - end - self._ahead, now - end
        allowed = _STEP_S + end - start + _SLEW * (end - self._read_at)
        self._read_at = end
        # Not a number: nothing is known of the time before.
        if not abs(step) <= allowed:
            self._steady_since = end
            if not math.isnan(step):
                LOG.warning("The database's clock was set by %.0f s", step)
        return now

    def is_steady_for(self, seconds: float) -> bool:
        """Whether it made no step in the last *seconds*, as far as known."""
        return time.monotonic() - self._steady_since >= seconds


def is_older(
    column: sa.ColumnElement[float], now: float, seconds: float
) -> sa.ColumnElement[bool]:
    """Return whether a stored time is older, of a clock that was steady since.

    What is from as far in the future is older as well: the clock was set back.

    :param now: the time
    """
    return sa.or_(column < now - seconds, column > now + seconds)
