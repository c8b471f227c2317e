"""Watches the database, and stops the daemon's work while it is lost.

Owns a thread that probes the database over a connection of its own: the
engine's thread may wait for an answer that never arrives. The engine's thread
reports its own errors. Both may call any method.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store import driver_errors, schema, version
from scheduler_service.store.connection import Store
from scheduler_service.store.probe import Probe, check_write
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
