"""Database sessions: their time limits, and how a wait is broken off.

Each new connection gets its limits when it is opened, by events of
SQLAlchemy's engine. :class:`Sessions` may be used by any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import sqlite3
import termios
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

# The name of the daemon's sessions at the server.
APPLICATION = 'scheduler-service'
# SQL that identifies the server of a session: session numbers are per server.
# A PostgreSQL that was started again counts as another server.
SERVER = {
    'postgresql': 'CAST(pg_postmaster_start_time() AS text)',
    'mysql': "CONCAT_WS(':', @@hostname, @@port, @@server_id)",
}
# How many keepalives without an answer end a connection.
KEEPALIVES = 2
# Steps of SQLite's virtual machine, some 5 ms of its work.
_STEPS_BETWEEN_LOOKS = 100_000
# The key of a connection's limits in what its record keeps.
LIMITS = 'timeouts'
_READ_COMMITTED: Any = 'READ COMMITTED'


class Session:
    """What the connections of both drivers have.

    :ivar statement_timeout: seconds that one statement may take; 0: no limit
    :ivar whole_tables: whether statements may read whole tables
    :ivar server_id: the server's number of the session; None: unknown, or
        there is a proxy in between
    :ivar server: the result of ``SERVER``, which identifies the server
    :ivar waits_since: monotonic time since when it waits; None: it does not
    """

    statement_timeout = 0.0
    whole_tables = False
    server_id: int | None = None
    server: str | None = None
    waits_since: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the database may take, in seconds; 0: no limit.

    :ivar connect: to open a connection
    :ivar lock: to wait for a lock that another session has
    :ivar statement: to work at one statement
    :ivar idle_transaction: until the server ends a session that is idle
        inside a transaction
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


class Wait(NamedTuple):
    """A session that waits for the server.

    :ivar server_id: the server's number of the session
    :ivar since: monotonic time
    """

    session: Any
    server_id: int
    since: float

    @property
    def is_under_way(self) -> bool:
        """Whether this wait is not over yet."""
        return bool(self.session.waits_since == self.since)

    @property
    def seconds(self) -> float:
        """How long ago the wait began."""
        return time.monotonic() - self.since

    @property
    def is_sending(self) -> bool:
        """Whether its statement is still on the way to the server."""
        with contextlib.suppress(Exception):
            return is_sending(self.session.fileno())
        return False


def is_sending(sock: int) -> bool:
    """Whether the peer has not acknowledged all that was sent to it.

    :param sock: the descriptor of a socket
    :raises OSError: it is none
    """
    return any(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))


class Sessions:
    """The open connections of an engine, and those that were broken off.

    :param engine: its connections are set up before
    :param limits: gives those that connections are to have now
    """

    def __init__(self, engine: Engine, limits: Callable[[], Timeouts]) -> None:
        self._engine = engine
        self._limits = limits
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._aborted: list[Wait] = []
        if engine.dialect.name == 'mysql':
            _read_committed(engine)
        sa.event.listen(engine, 'connect', self._add)
        sa.event.listen(engine, 'checkout', self._check_limits)

    def _check_limits(self, dbapi_conn: Any, record: Any, proxy: Any) -> None:
        """Replace a connection that has earlier limits.

        :raises DisconnectionError: the pool then makes a new connection
        """
        if record.info.get(LIMITS) is not self._limits():
            raise sa.exc.DisconnectionError

    def _add(self, dbapi_conn: Any, record: Any) -> None:
        if hasattr(dbapi_conn, 'abort'):
            # It is set up by now: the other listeners ran before.
            dbapi_conn.read_timeout = record.info[LIMITS].read
            with self._lock:
                self._open.add(dbapi_conn)

    def abort(self) -> None:
        """Break off every wait, and drop the connections that are idle.

        Threads that wait for the database get StoreUnavailable.
        """
        waits = self.waits(0)
        with self._lock:
            self._aborted += waits
        for session in self._listed():
            session.abort()
        self._engine.dispose()

    def abort_wait(self, wait: Wait) -> None:
        """Break a wait off, if it is still under way."""
        if wait.is_under_way:
            wait.session.abort()
            with self._lock:
                self._aborted.append(wait)

    def aborted_waits(self) -> list[Wait]:
        """Return the waits that were broken off, until they are forgotten.

        Their sessions are closed here. The server may not know that.
        """
        closed = []
        with self._lock:
            for wait in list(self._aborted):
                if wait.session.closed:
                    closed.append(wait)
                elif not wait.is_under_way:
                    # It was answered after all.
                    self._aborted.remove(wait)
        return closed

    def forget(self, wait: Wait) -> None:
        """Forget a wait that was broken off."""
        with self._lock:
            self._aborted.remove(wait)

    def waits(self, seconds: float) -> list[Wait]:
        """Return the sessions that have been waiting for longer."""
        before = time.monotonic() - seconds
        return [
            Wait(session, session.server_id, since)
            for session in self._listed()
            if (since := session.waits_since)
            and since < before
            and session.server_id is not None
        ]

    def _listed(self) -> list[Any]:
        with self._lock:
            return list(self._open)


@contextlib.contextmanager
def limited(
    conn: Connection, seconds: float, whole_tables: bool | None = None
) -> Iterator[None]:
    """Give the statements inside another limit than those of the session.

    :param seconds: that one may take; 0: no limit
    :param whole_tables: whether they may read whole tables; None: as others
    """
    session: Any = conn.connection.dbapi_connection
    if isinstance(session, sqlite3.Connection):
        with _limited_together(session, seconds):
            yield
        return
    limit, usual = session.read_timeout, session.whole_tables
    session.limit_statements(
        seconds, usual if whole_tables is None else whole_tables
    )
    if not seconds:
        session.read_timeout = None
    try:
        yield
    finally:
        # PostgreSQL takes nothing after an error; the end of the transaction
        # brings the limits of before back.
        with contextlib.suppress(Exception):
            session.limit_statements(session.statement_timeout, usual)
        session.read_timeout = limit


@contextlib.contextmanager
def _limited_together(
    session: sqlite3.Connection, seconds: float
) -> Iterator[None]:
    """Limit what is read inside in all: SQLite has no limit of its own."""
    until = time.monotonic() + (seconds or math.inf)
    session.set_progress_handler(
        lambda: time.monotonic() > until, _STEPS_BETWEEN_LOOKS
    )
    try:
        yield
    finally:
        session.set_progress_handler(None, 0)


def _read_committed(engine: Engine) -> None:
    """Have each transaction see what was committed until each statement.

    It is set once for a connection: as an option of the engine it would take
    two more round trips for each transaction.
    """

    @sa.event.listens_for(engine, 'connect')
    def _set(dbapi_conn: Any, record: Any) -> None:
        with contextlib.closing(dbapi_conn.cursor()) as cursor:
            cursor.execute(
                f'SET SESSION TRANSACTION ISOLATION LEVEL {_READ_COMMITTED}'
            )
        # What a connection returns to after it was in another mode.
        engine.dialect.default_isolation_level = _READ_COMMITTED
