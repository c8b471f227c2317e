"""Database sessions: their time limits, and how a wait is broken off.

Each new connection gets its limits when it is opened, by events of
SQLAlchemy's engine. :class:`Sessions` may be used by any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import termios
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from scheduler_service.store.timeouts import Timeouts

# Under which a connection's limits are kept in its record.
_LIMITS = 'timeouts'
_READ_COMMITTED: Any = 'READ COMMITTED'


class Wait(NamedTuple):
    """A session that waits for the server.

    :ivar server_id: the server's number of the session
    :ivar since: monotonic time
    """

    session: Any
    server_id: int
    since: float

    @property
    def goes_on(self) -> bool:
        """Whether the session has been waiting ever since."""
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
    unsent = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4))
    return any(unsent)


class Sessions:
    """The open connections of an engine.

    :param engine: whose new connections get the limits
    :param limits: gives those of a connection that is made now
    """

    def __init__(self, engine: Engine, limits: Callable[[], Timeouts]) -> None:
        self._engine = engine
        self._limits = limits
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._aborted: list[Wait] = []
        _prepare(engine, limits)
        if engine.dialect.name in ('mysql', 'mariadb'):
            _read_committed(engine)
        sa.event.listen(engine, 'connect', self._add)
        sa.event.listen(engine, 'checkout', self._check_limits)

    def _check_limits(self, dbapi_conn: Any, record: Any, proxy: Any) -> None:
        """Have a connection with limits of before made anew.

        :raises DisconnectionError: says so to the pool
        """
        if record.info.get(_LIMITS) is not self._limits():
            raise sa.exc.DisconnectionError

    def _add(self, dbapi_conn: Any, record: Any) -> None:
        limits = record.info[_LIMITS] = self._limits()
        if hasattr(dbapi_conn, 'abort'):
            # It is set up now: other listeners ran before this one.
            dbapi_conn.read_timeout = limits.read
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
        """Break one wait off, if it goes on."""
        if wait.goes_on:
            wait.session.abort()
            with self._lock:
                self._aborted.append(wait)

    def left_behind(self) -> list[Wait]:
        """Return the waits that were broken off, until they are forgotten.

        Their sessions are closed here. The server may not know that.
        """
        left = []
        with self._lock:
            for wait in list(self._aborted):
                if wait.session.closed:
                    left.append(wait)
                elif not wait.goes_on:
                    # It was answered after all.
                    self._aborted.remove(wait)
        return left

    def forget(self, wait: Wait) -> None:
        """Forget a wait that was broken off."""
        with self._lock:
            self._aborted.remove(wait)

    def waits(self, seconds: float) -> list[Wait]:
        """Return the sessions that have been waiting for longer."""
        before = time.monotonic() - seconds
        found = []
        for session in self._listed():
            since = session.waits_since
            if since and since < before and session.server_id is not None:
                found.append(Wait(session, session.server_id, since))
        return found

    def _listed(self) -> list[Any]:
        with self._lock:
            return list(self._open)


@contextlib.contextmanager
def reading_whole_tables(conn: Connection) -> Iterator[None]:
    """Let the statements inside read whole tables, without a time limit."""
    session: Any = conn.connection.dbapi_connection
    if not hasattr(session, 'limit_statements'):
        yield
        return
    limit = session.read_timeout
    session.limit_statements(0, whole_tables=True)
    session.read_timeout = None
    yield
    session.limit_statements(session.statement_timeout, session.whole_tables)
    session.read_timeout = limit


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


def _prepare(engine: Engine, limits: Callable[[], Timeouts]) -> None:
    """Have the connections of an engine set up; load only its driver."""
    dialect = engine.dialect
    if dialect.name == 'sqlite':
        _prepare_sqlite(engine, limits)
    elif (dialect.name, dialect.driver) == ('postgresql', 'psycopg'):
        from scheduler_service.store import pg_sessions

        pg_sessions.prepare(engine, limits)
    elif dialect.driver == 'pymysql':
        from scheduler_service.store import mysql_sessions

        mysql_sessions.prepare(engine, limits)


def _prepare_sqlite(engine: Engine, limits: Callable[[], Timeouts]) -> None:
    """Let a writer wait for another writer instead of failing at once."""

    @sa.event.listens_for(engine, 'connect')
    def _pragmas(dbapi_conn: Any, record: Any) -> None:
        limit_ms = int(limits().lock * 1000)
        dbapi_conn.execute(f'PRAGMA busy_timeout = {limit_ms}')
        dbapi_conn.execute('PRAGMA journal_mode = WAL')
