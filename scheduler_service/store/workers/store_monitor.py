"""Watches the database, and stops the daemon's work while it is lost.

Owns a thread that probes the database over a connection of its own: the
engine's thread may wait for an answer that never arrives. The engine's thread
reports its own errors. Both may call any method.

A :class:`Probe` also ends sessions whose connections do not work. It belongs
to one thread and has a connection of its own, so that it works while all
other threads wait. Any thread may call :func:`check_write`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store import driver_errors, schema, version
from scheduler_service.store.connection import KeptConnection, Store
from scheduler_service.store.driver_errors import (
    is_timeout,
    translate_errors,
    unavailable,
)
from scheduler_service.store.sessions import SERVER, Wait
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
# The interval of probes, in seconds.
_INTERVAL_S = 0.5
# After how long a wait the database is asked about the session, in seconds.
_LONG_WAIT_S = 1.5
# The longest pause before a database that failed is written to again, and for
# how long it has to work until the next failure is not a relapse, in seconds.
_LONGEST_PAUSE_S = 8.0
_STABLE_S = 60.0
# Sessions of this user: their server, whether it believes to wait for the
# client, be it for the rest of a statement, and their age in seconds. MariaDB
# has no age.
_OWN_SESSIONS = {
    'postgresql': sa.text(f"""
        SELECT pid AS id, {SERVER['postgresql']} AS server,
            state <> 'active' OR wait_event = 'ClientRead' AS idle,
            EXTRACT(epoch FROM clock_timestamp() - backend_start) AS age
        FROM pg_stat_activity
        WHERE pid IN :ids AND usename = current_user
    """),  # noqa: S608
    'mysql': sa.text(f"""
        SELECT id, {SERVER['mysql']} AS server, command = 'Sleep' AS idle,
            NULL AS age
        FROM information_schema.processlist
        WHERE id IN :ids AND user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1)
    """),  # noqa: S608
}
_UPTIME = sa.text("SHOW GLOBAL STATUS LIKE 'Uptime'")
_END = {
    'postgresql': sa.text('SELECT pg_terminate_backend(:id)'),
    'mysql': sa.text('KILL CONNECTION :id'),
}


# What claims and releases insert into or, in ``inventories``, change.
_CLAIMED = (
    schema.instances,
    schema.moves,
    schema.allocations,
    schema.inventories,
    schema.changes,
    schema.outcomes,
    schema.releases,
)
# As many rows as a batch has. With long names they fill a page, at least, of
# each table and of its keys, whatever room there is in pages that exist.
_ROWS = 64
_LONG = 256


class StoreMonitor(Worker):
    """Notifies the daemon when the database is lost and when it is back.

    :param retry_s: seconds after which the engine asks the database again;
        the pause before it is consumed for doubles with each relapse, and
        with each write that fails meanwhile
    :ivar pause: called when it is lost, by any thread: consume nothing more
    :ivar resume: called when it is back, by the engine's thread
    """

    def __init__(self, store: Store, health: Health, retry_s: float) -> None:
        super().__init__('store-monitor', health.thread_ended)
        self.pause: Callable[[], None] = lambda: None
        self.resume: Callable[[], None] = lambda: None
        self._store = store
        self._health = health
        self._retry_s = retry_s
        self._answered_at = time.monotonic()
        self._pause_s = retry_s
        self._back_at = self._write_at = -math.inf
        # Whether a session was lost since the engine's last answer.
        self._session_lost = False
        # Why it was lost the last time.
        self._reason = ''
        # Pausing belongs to recording the loss, and resuming to its end.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread; SQLite has no server to watch."""
        if self._store.dialect != 'sqlite':
            super().start()

    def only_session_lost(self, error: errors.StoreUnavailable) -> bool:
        """Whether the engine is to go on at once, with a new session.

        So it is where the last one worked: a server, an operator or a device
        in between ends single sessions. Where the new one fails before it had
        an answer, the database is lost.
        """
        again, self._session_lost = self._session_lost, True
        if (
            again
            or not self._health.database_reachable
            or not driver_errors.is_silent(error)
        ):
            return False
        LOG.warning('Going on with a new database session: %s', error)
        return True

    def lost(self, error: errors.StoreUnavailable) -> None:
        """Record that the database does not answer, and stop consuming."""
        with self._lock:
            if self._health.database_reachable:
                if time.monotonic() - self._back_at < _STABLE_S:
                    self._lengthen_pause()
                else:
                    self._pause_s = self._retry_s
            self._reason = str(error)
            self._health.database_failed(error, self._pause_s)
            self.pause()

    def answered(self, waiting: int) -> None:
        """Record that the database answers the engine, and consume again.

        :param waiting: requests that waited for it
        :raises StoreUnavailable: it was lost, and cannot be written to yet
        """
        self._answered_at = time.monotonic()
        self._session_lost = False
        if self._health.database_reachable:
            self._health.database_answered(waiting)
            return
        # After a failed write the database may still answer reads.
        if time.monotonic() < self._write_at:
            raise errors.StoreUnavailable(self._reason)
        try:
            check_write(self._store)
        except errors.StoreUnavailable:
            self._lengthen_pause()
            raise
        with self._lock:
            self._back_at = time.monotonic()
            self._health.database_answered(waiting)
            self.resume()

    def _lengthen_pause(self) -> None:
        """Double the time without attempts to write to the database."""
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._write_at = time.monotonic() + self._pause_s

    def wait_until(
        self, load: Callable[[], bool], stopping: threading.Event
    ) -> bool:
        """Check the tables, then call *load* until it returns true.

        Both are tried again where the database does not answer.

        :param load: uses the database; it may raise StoreUnavailable
        :param stopping: ends the wait
        :return: false where the wait was ended
        :raises SchemaMismatch: this release cannot use the tables
        """
        checked = False
        while not stopping.is_set():
            try:
                if not checked:
                    self._check_tables()
                    checked = True
                loaded = load()
                self.answered(0)
            except errors.StoreUnavailable as error:
                self.lost(error)
                checked = False
            else:
                if loaded:
                    return True
                # The thread that logs changes later is not started yet.
                self._health.log_changes()
            stopping.wait(self._retry_s)
        return False

    def _check_tables(self) -> None:
        with self._store.reading() as conn:
            tables = version.check(conn)
        if tables != schema.VERSION:
            text = 'The tables are newer than this release, which can use them'
            LOG.info('%s: version %s, not %s', text, tables, schema.VERSION)

    def _run(self) -> None:
        probe = Probe(self._store)
        try:
            while not self._stopping.wait(_INTERVAL_S):
                self._check(probe)
        finally:
            probe.close()

    def _check_sessions(self, probe: Probe) -> None:
        sessions = self._store.sessions
        closed = sessions.aborted_waits()
        probe.end(closed)
        for wait in closed:
            sessions.forget(wait)
        if sessions.waits(_LONG_WAIT_S):
            for wait in probe.cut_off(_LONG_WAIT_S):
                sessions.abort_wait(wait)

    def _check(self, probe: Probe) -> None:
        started = time.monotonic()
        try:
            probe.ask()
            # A timeout here is no loss: the next probe tries again.
            with contextlib.suppress(errors.StoreTimeout):
                self._check_sessions(probe)
        except errors.StoreUnavailable as error:
            if self._answered_at > started:
                # The engine got an answer meanwhile: only the probe failed.
                return
            self.lost(error)
            self._store.sessions.abort()


def check_write(store: Store) -> None:
    """Write as much as claims do, take it back, and commit.

    A full disk takes what fits into pages that exist. No other session sees
    the rows.

    :raises StoreUnavailable: the database cannot be written to
    """
    unique = secrets.token_hex(12)
    with translate_errors(), store.engine.begin() as conn:
        for table in _CLAIMED:
            rows = [_row(table, f'{unique}{n:04}') for n in range(_ROWS)]
            conn.execute(table.insert(), rows)
            key = table.primary_key.columns[0]
            keys = [row[key.name] for row in rows]
            conn.execute(sa.delete(table).where(key.in_(keys)))


def _row(table: sa.Table, unique: str) -> dict[str, Any]:
    """Return a row with long texts, and numbers that no other row has.

    The texts have the columns' lengths, and cannot be compressed.

    :param unique: what the texts begin with, and hexadecimal digits
    """
    number = -int(unique[-15:], 16)
    text = (unique + secrets.token_hex(_LONG))[:_LONG]
    return {
        column.name: text[: column.type.length]
        if isinstance(column.type, sa.String)
        else number
        for column in table.columns
    }


class Probe:
    """A connection that only asks whether the database answers.

    :param store: whose database it is; never of SQLite
    """

    def __init__(self, store: Store) -> None:
        self._watched = store
        self._store = Store.connect(
            store.engine.url.render_as_string(hide_password=False),
            store.timeouts.for_probe(),
            max_pool_size=1,
            max_overflow=0,
        )
        self._dialect = self._store.dialect
        self._limits = store.timeouts
        self._kept = KeptConnection(self._store, isolation_level='AUTOCOMMIT')

    def ask(self) -> None:
        """Wait for a sign of life.

        :raises StoreUnavailable: there was none in ``response`` seconds
        """
        if self._limits is not self._watched.timeouts:
            self._limits = self._watched.timeouts
            self._kept.drop()
            self._store.timeouts = self._limits.for_probe()
        was_open, start = self._kept.is_open, time.monotonic()
        try:
            self._select()
        except errors.StoreUnavailable:
            took = time.monotonic() - start
            if not was_open or took > self._store.timeouts.response / 2:
                raise
            # Somebody ended the session: a new one shows what that means.
            self._select()

    def _select(self) -> None:
        try:
            with translate_errors():
                self._kept.get().execute(sa.text('SELECT 1'))
        except errors.StoreUnavailable:
            self._kept.drop()
            raise

    def cut_off(self, seconds: float) -> list[Wait]:
        """Return the sessions that wait for an answer and will get none.

        The server does not work at anything for them: a device in between
        has dropped their connection without a word.

        :param seconds: those that have been waiting for longer
        :raises StoreTimeout: the query takes too long
        :raises StoreUnavailable: the database does not answer
        """
        waits = self._on_server(self._watched.sessions.waits(seconds))
        return [w for w, idle in waits if idle and not w.is_sending]

    def end(self, waits: Sequence[Wait]) -> None:
        """Have the server end sessions that were closed while they waited.

        It may not know that: the locks of a transaction would stay until
        ``idle_transaction``, and all daemons would wait for them.

        :raises StoreTimeout: the query takes too long
        :raises StoreUnavailable: the database does not answer
        """
        for wait, _ in self._on_server(waits):
            self._optional(_END[self._dialect].bindparams(id=wait.server_id))
            LOG.info(
                'Ended session %s in the database: its connection does not '
                'work',
                wait.server_id,
            )

    def _on_server(self, waits: Sequence[Wait]) -> list[tuple[Wait, bool]]:
        """Return the waits of sessions that the server has, and which idle."""
        if not waits:
            return []
        listed = {wait.server_id: wait for wait in waits}
        query = _OWN_SESSIONS[self._dialect].bindparams(
            sa.bindparam('ids', list(listed), expanding=True)
        )
        rows = self._optional(query)
        longest = 0.0
        if rows and self._dialect == 'mysql':
            # No session is older than the server, which counts whole seconds.
            uptime = self._optional(_UPTIME)
            longest = sum(float(row.Value) + 1 for row in uptime)
        sessions = []
        for row in rows:
            wait = listed[row.id]
            age = longest if row.age is None else float(row.age)
            # Another server, or a restarted one, may have given the number to
            # another session.
            if row.server == wait.session.server and age >= wait.seconds:
                sessions.append((wait, bool(row.idle)))
        return sessions

    def _optional(self, query: sa.TextClause) -> Sequence[sa.Row[Any]]:
        """Return the rows of a query; none where the server refuses it.

        It may lack the tables, or not let this user read them.

        :raises StoreTimeout: it takes too long
        :raises StoreUnavailable: the database does not answer
        """
        try:
            result = self._kept.get().execute(query)
            return result.all() if result.returns_rows else []
        except (sa.exc.DBAPIError, db_exception.DBError) as fault:
            if is_timeout(fault):
                raise errors.StoreTimeout(
                    'The database takes too long to list its sessions'
                ) from fault
            if self._kept.is_open and not self._kept.get().invalidated:
                return []
            self._kept.drop()
            raise unavailable(fault) from fault

    def close(self) -> None:
        """Close its connection."""
        self._kept.drop()
        self._store.dispose()
