"""How long the database may take, and what says that it took too long.

Plain values, which any thread may read.
"""

from __future__ import annotations

import dataclasses
from typing import Any

# The name under which sessions of ours are known to the server.
APPLICATION = 'scheduler-service'
# SQL for which server a session is on: each numbers its own sessions. A
# PostgreSQL that was started again is another one.
SERVER = {
    'postgresql': 'CAST(pg_postmaster_start_time() AS text)',
    'mysql': "CONCAT_WS(':', @@hostname, @@port, @@server_id)",
}
# How many keepalives without an answer end a connection.
KEEPALIVES = 2
# Codes of a lock or a statement that took too long, by driver.
_PG_TIMEOUTS = frozenset(('55P03', '57014'))
_MYSQL_TIMEOUTS = frozenset((1205, 1969, 3024))
_SQLITE_TIMEOUT = 'database is locked'


@dataclasses.dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the database may take, in seconds; 0: no limit.

    :ivar connect: to open a connection
    :ivar lock: to wait for a lock that another session has
    :ivar statement: to work at one statement
    :ivar idle_transaction: until the server ends a session of ours that is
        idle inside a transaction
    :ivar response: without any sign of life, until it counts as unreachable
    :ivar whole_tables: whether statements may read whole tables, which takes
        its time; else PostgreSQL uses keys wherever it can
    """

    connect: int = 3
    lock: float = 5.0
    statement: float = 30.0
    idle_transaction: float = 10.0
    response: float = 3.0
    whole_tables: bool = False

    @property
    def read(self) -> float | None:
        """How long one read may take; None: no limit."""
        return self.statement + self.response if self.statement else None

    def for_probe(self) -> Timeouts:
        """Return the limits of a session that only asks for signs of life."""
        half = self.response / 2
        return dataclasses.replace(
            self, lock=half, statement=half, response=half
        )


def is_timeout(fault: Any) -> bool:
    """Whether a driver's exception says that a lock or statement took long."""
    if getattr(fault, 'sqlstate', None) in _PG_TIMEOUTS:
        return True
    code = next(iter(getattr(fault, 'args', ())), None)
    return code in _MYSQL_TIMEOUTS or code == _SQLITE_TIMEOUT
