"""The engine's snapshot: loads it, and keeps it up to date.

It belongs to the engine's thread, which alone calls it and writes to the
snapshot. Other threads may look at ``snapshot`` for single figures, and take
copies of its table.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.store import claims
from scheduler_service.store.connection import Store, translate_errors
from scheduler_service.store.reading import change_feed
from scheduler_service.store.reading.snapshot_loading import load_snapshot

LOG = logging.getLogger(__name__)
# A request that was sent before a release is processed within this time.
_RELEASES_KEPT_S = 60.0


class RecentReleases:
    """Instances whose claims callers released in the last minute."""

    def __init__(self) -> None:
        self._seen_at: dict[str, float] = {}

    def add(self, instances: Iterable[str]) -> None:
        """Add instances; drop those that were added long ago."""
        now = time.monotonic()
        for uuid in instances:
            self._seen_at.pop(uuid, None)
            self._seen_at[uuid] = now
        old = []
        for uuid, seen_at in self._seen_at.items():
            if now - seen_at < _RELEASES_KEPT_S:
                break
            old.append(uuid)
        for uuid in old:
            del self._seen_at[uuid]

    def any_of(self, instances: Iterable[str]) -> bool:
        """Whether one of some instances was released."""
        seen_at = self._seen_at
        return bool(seen_at) and any(uuid in seen_at for uuid in instances)


def _ignore_change() -> None:
    """Do nothing: nobody needs to know that the history changed."""


class SnapshotCache:
    """The engine's view of the store, and its connections.

    :ivar max_age: seconds after which the snapshot is brought up to date
        before it is used
    :ivar snapshot: None before the first load
    :ivar refreshed_at: monotonic time at which it was known to be current
    :ivar loading: whether hosts are being read, which may take long
    :ivar pending: the claim that the raw connection is busy with
    :ivar on_history_changed: called when the database went back in time,
        before everything is loaded anew
    :ivar releases: that the change feed named
    """

    def __init__(self, store: Store, max_age: float) -> None:
        self.store = store
        self.snapshot: Snapshot | None = None
        self.refreshed_at = 0.0
        self.loading = False
        self.pending: claims.PendingClaim | None = None
        self.on_history_changed: Callable[[], None] = _ignore_change
        self.releases = RecentReleases()
        self.max_age = max_age
        # Our own claims since the last look at the database, whose effect is
        # in the snapshot: revision -> lineage. The next look finds them, or
        # the database went back in time.
        self._own: dict[int, str] = {}
        # The last change of which the effect is in the snapshot.
        self._newest: tuple[int, str | None] = (0, None)
        self._behind = False
        self._reader: Connection | None = None
        self._writer: Connection | None = None

    def load(self) -> Snapshot:
        """Load everything anew.

        :raises StoreUnavailable: the database does not answer
        """
        with self._loads(), self._transaction() as conn:
            self.snapshot = load_snapshot(conn)
        return self._mark_refreshed(self.snapshot)

    def current(self) -> Snapshot:
        """Return the snapshot, brought up to date if it is too old."""
        age = time.monotonic() - self.refreshed_at
        if self.snapshot is None or self._behind or age > self.max_age:
            return self.refresh()
        return self.snapshot

    def refresh(self) -> Snapshot:
        """Bring the snapshot up to date now.

        Nothing may be assumed in its table that is not claimed.

        :raises StoreUnavailable: the database does not answer
        """
        if self.snapshot is None:
            return self.load()
        # Where too much changed, all of it is loaded anew.
        with self._loads(), self._transaction() as conn:
            try:
                self.snapshot = change_feed.refresh(
                    conn, self.snapshot, self._own, self.releases.add
                )
            except change_feed.HistoryChanged as change:
                LOG.warning(
                    'The database went back in time (%s): loading everything',
                    change,
                )
                self.on_history_changed()
                self.snapshot = load_snapshot(conn)
        return self._mark_refreshed(self.snapshot)

    def changed_by_others(self) -> bool:
        """Bring the snapshot up to date; return whether that changed it."""
        before, behind = self._newest, self._behind
        self.refresh()
        return behind or self._newest != before

    def advance(self, revision: int, lineage: str) -> None:
        """Note that the snapshot has what a claim of ours wrote.

        Where others wrote in between, their changes are read before the next
        decision.
        """
        self._own[revision] = lineage
        if revision == self._newest[0] + 1:
            self._newest = revision, lineage
        else:
            self._behind = True

    @contextlib.contextmanager
    def writer(self) -> Iterator[Connection]:
        """Give the kept connection for writing.

        :raises StoreUnavailable: the database does not answer
        """
        if self._writer is None:
            self._writer = self.store.hold()
        try:
            yield self._writer
        except errors.StoreUnavailable:
            self.drop()
            raise

    @contextlib.contextmanager
    def autocommit_connection(self) -> Iterator[Connection]:
        """Give the kept connection that commits each statement by itself.

        :raises StoreUnavailable: the database does not answer
        """
        with self._transaction() as conn:
            yield conn

    @contextlib.contextmanager
    def _loads(self) -> Iterator[None]:
        self.loading = True
        try:
            yield
        finally:
            self.loading = False

    def is_waiting(self) -> bool:
        """Whether the engine waits for an answer of the database.

        Any thread may ask. SQLite is no server, and never is waited for.
        """
        for conn in (self._reader, self._writer):
            with contextlib.suppress(Exception):
                session: Any = conn and conn.connection.dbapi_connection
                if getattr(session, 'waits_since', None) is not None:
                    return True
        return False

    def forget(self) -> None:
        """Forget what was worked out from the options before."""
        if self.snapshot is not None:
            self.snapshot.hosts.topology.clear()
            self.snapshot.hosts.load.clear()

    def drop(self) -> None:
        """Drop the connections; the next use makes new ones.

        Whether a pending claim was made is not known: others' changes and
        our own are all read again.
        """
        self._behind = True
        for conn in (self._reader, self._writer):
            if conn is not None:
                with contextlib.suppress(Exception):
                    conn.invalidate()
                    conn.close()
        self._reader = self._writer = None

    @contextlib.contextmanager
    def raw_connection(self) -> Iterator[Connection]:
        """Give the kept connection for use below SQLAlchemy.

        :raises StoreUnavailable: the database does not answer
        """
        if self._reader is None:
            self._reader = self.store.hold().execution_options(
                isolation_level='AUTOCOMMIT'
            )
        if self.pending is not None:
            # A connection serves one statement after the other.
            self.pending.finish()
            self.pending = None
        try:
            yield self._reader
        except errors.StoreUnavailable:
            self.drop()
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with (
            self.raw_connection() as conn,
            translate_errors(),
            conn.begin(),
        ):
            yield conn

    def _mark_refreshed(self, snapshot: Snapshot) -> Snapshot:
        self.refreshed_at = time.monotonic()
        self._own.clear()
        self._behind = False
        self._newest = snapshot.revision, snapshot.lineage
        return snapshot
