"""Clocks that tests move on, and clocks of databases that they set."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from scheduler_service.store import clock
from scheduler_service.store.connection import Store

# PostgreSQL, whose statements do not all go through SQLAlchemy, finds this
# function before its own.
_STEPPED = """
CREATE SCHEMA stepped;
CREATE TABLE stepped.clock AS SELECT CAST(0 AS double precision) AS seconds;
CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    'SELECT pg_catalog.clock_timestamp()
        + make_interval(secs => seconds) FROM stepped.clock';
"""


class Clock:
    """Monotonic seconds, which a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class DatabaseClock:
    """The clock of a database of a test's own, which the test sets.

    :param stores: all that use the database
    """

    def __init__(self, *stores: Store) -> None:
        self._ahead = 0.0
        self._store = stores[0]
        self._plain = clock.sql(self._store.dialect)
        if self._store.dialect == 'postgresql':
            with self._store.engine.begin() as conn:
                conn.exec_driver_sql(_STEPPED)
                conn.exec_driver_sql(
                    f'ALTER DATABASE {self._store.engine.url.database} '
                    'SET search_path = stepped, pg_catalog, public'
                )
            for store in stores:
                store.dispose()
            return
        for store in stores:
            sa.event.listen(
                store.engine, 'before_cursor_execute', self._read, retval=True
            )

    def _read(
        self, conn: Any, cursor: Any, text: str, values: Any, *more: Any
    ) -> tuple[str, Any]:
        ahead = f'({self._plain} + {self._ahead!r})'
        return text.replace(self._plain, ahead), values

    def set_by(self, seconds: float) -> None:
        """Set the clock forward, or back, for all sessions."""
        if self._store.dialect == 'postgresql':
            with self._store.engine.begin() as conn:
                conn.exec_driver_sql(
                    f'UPDATE stepped.clock SET seconds = seconds + {seconds}'
                )
        self._ahead += seconds
