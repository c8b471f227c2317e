"""The engine's snapshot: loads it, and keeps it up to date.

It belongs to the engine's thread, which alone calls it and writes to the
snapshot. Other threads may look at ``snapshot`` for single figures, and take
copies of its table.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.health import SNAPSHOT, Health
from scheduler_service.engine.journal import Journal
from scheduler_service.engine.ports import PendingClaims
from scheduler_service.settings import EngineOptions
from scheduler_service.store import claims
from scheduler_service.store.connection import KeptConnection, Store
from scheduler_service.store.driver_errors import translate_errors
from scheduler_service.store.reading import change_feed
from scheduler_service.store.reading.snapshot import load_snapshot

if TYPE_CHECKING:
    from scheduler_service.store.claims.pg_claims import (
        PendingRelease,
        Released,
    )

LOG = logging.getLogger(__name__)
# Largest age of the snapshot: a multiple of the time that reading the changes
# takes, and a limit in seconds.
_READING_SHARE = 4
_OLDEST_S = 5.0
# A request that was sent before a release is processed within this time.
_RELEASES_KEPT_S = 60.0


class RecentReleases:
    """Instances whose claims callers released in the last minute.

    :ivar made_here: instance -> revision of its last release by this daemon
    """

    def __init__(self) -> None:
        self.made_here: dict[str, int] = {}
        # The first one of a plain dict is found ever slower where the first
        # ones are deleted.
        self._added_at: OrderedDict[str, float] = OrderedDict()
        # Before, there may have been others.
        self._complete_since = 0.0

    def add(self, instances: Iterable[str] | None, made_here: int = 0) -> None:
        """Add instances; drop instances that were added long ago.

        :param instances: None: which there were until now is not known
        :param made_here: revision of their release by this daemon; 0: it was
            by any
        """
        now = time.monotonic()
        if instances is None:
            self._complete_since = now
        added_at = self._added_at
        for uuid in instances or ():
            added_at[uuid] = now
            added_at.move_to_end(uuid)
            if made_here:
                self.made_here[uuid] = made_here
        while now - next(iter(added_at.values()), now) > _RELEASES_KEPT_S:
            oldest, _ = added_at.popitem(last=False)
            self.made_here.pop(oldest, None)

    def any_of(self, instances: Iterable[str], since: float) -> bool:
        """Whether any of these instances may have been released.

        :param since: monotonic time
        """
        added_at = self._added_at
        return since < self._complete_since or (
            bool(added_at) and any(uuid in added_at for uuid in instances)
        )


class StoreHostSource:
    """The engine's view of the store, and its connections.

    Methods that query the database may raise StoreUnavailable.

    :ivar snapshot: None before the first load
    :ivar refreshed_at: monotonic time at which it was current for certain
    :ivar loading: whether hosts are being read, which may take long
    :ivar pending: the claim that the raw connection is busy with
    :ivar pending_release: releases that the kept writer is busy with
    :ivar releases: recent releases, by all daemons
    :param on_history_changed: called when the database went back in time,
        before everything is loaded again
    :param journal: gets what is done to the hosts of the snapshot
    :param health: learns whether hosts can be read; where the database does
        not answer, the engine's thread reports that
    """

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        on_history_changed: Callable[[], None],
        journal: Journal | None = None,
        health: Health | None = None,
    ) -> None:
        self.store = store
        self._health = health or Health()
        self._journal = journal or Journal()
        self.snapshot: Snapshot | None = None
        self.refreshed_at = 0.0
        self.loading = False
        self.pending: claims.ClaimBatch | None = None
        self.pending_release: PendingRelease | None = None
        self._on_history_changed = on_history_changed
        self.releases = RecentReleases()
        self._options = options
        # Claims of this daemon since the last refresh, which the snapshot
        # includes: revision -> lineage. The next refresh reads them, or the
        # database went back in time.
        self._own: dict[int, str] = {}
        # The last change of which the effect is in the snapshot.
        self._newest: tuple[int, str | None] = (0, None)
        # Whether other daemons changed something since, and whether that
        # holds until the next refresh, whatever is committed meanwhile.
        self._behind = self._stale = False
        # How long it took to bring the snapshot up to date last, and when.
        self._read_s = self._read_at = 0.0
        self._reader = KeptConnection(store, isolation_level='AUTOCOMMIT')
        self._writer = KeptConnection(store)

    def load(self) -> Snapshot:
        """Load everything from the database."""
        start = time.monotonic()
        with self._loads(), self.autocommit_connection() as conn:
            self.snapshot = self._load(conn)
        return self._mark_refreshed(self.snapshot, start)

    def _load(self, conn: Connection) -> Snapshot:
        snapshot = load_snapshot(conn)
        self.releases.add(None)
        self._journal.checkpoint(snapshot.hosts, follows=False)
        return snapshot

    def current(self) -> Snapshot:
        """Return the snapshot, brought up to date if it is too old.

        Claims check the database, so an older snapshot only makes them more
        likely to be lost. Where reading takes long, it is therefore read less
        often: it takes at most a fifth of the time.
        """
        if self._journal.due and self.snapshot is not None:
            self._journal.checkpoint(self.snapshot.hosts, follows=True)
        max_age = self._options.snapshot_max_age
        if self.snapshot is None or not max_age:
            return self.refresh()
        now = time.monotonic()
        least = 0.0 if self._behind else max_age
        limit = max(least, min(_READING_SHARE * self._read_s, _OLDEST_S))
        since = self._read_at if self._behind else self.refreshed_at
        if now - since > limit or now - self._read_at > _OLDEST_S:
            return self.refresh()
        return self.snapshot

    def refresh(self) -> Snapshot:
        """Bring the snapshot up to date now.

        Nothing may be assumed in its table that is not claimed.
        """
        if self.snapshot is None:
            return self.load()
        self.finish_release()
        # Where too much changed, everything is loaded again.
        with self._loads(), self.autocommit_connection() as conn:
            start = time.monotonic()
            try:
                self.snapshot = change_feed.refresh(
                    conn,
                    self.snapshot,
                    self._own,
                    self.releases.add,
                    self._journal.apply,
                    self._load,
                )
            except change_feed.HistoryChanged as change:
                LOG.warning(
                    'The database went back in time (%s): loading everything',
                    change,
                )
                self._on_history_changed()
                self.snapshot = self._load(conn)
            self._read_s = time.monotonic() - start
        return self._mark_refreshed(self.snapshot, start)

    @property
    def current_at(self) -> float:
        """Monotonic time at which the snapshot was current.

        0: unknown: it has a change of this daemon, but lacks an earlier
        change of another daemon.
        """
        return 0.0 if self._behind else self.refreshed_at

    def changed_by_others(self) -> bool:
        """Bring the snapshot up to date; return whether that changed it."""
        before, behind = self._newest, self._behind
        self.refresh()
        return behind or self._newest != before

    def advance(self, pending: PendingClaims) -> None:
        """Record that the snapshot includes claims of this daemon.

        Changes of other daemons in between are read later. Without any the
        snapshot was current when the claims were committed.
        """
        self.finish_release()
        self._note_own(pending.wait(), pending.lineage, pending.sent_at)

    def _note_own(self, revision: int, lineage: str, sent_at: float) -> None:
        self._own[revision] = lineage
        newest = self._newest[0]
        while newest + 1 in self._own:
            newest += 1
            self._newest = newest, self._own[newest]
        if newest < max(self._own):
            self._behind = True
        elif not self._stale:
            self._behind = False
            self.refreshed_at = sent_at

    def finish_release(self) -> None:
        """Apply the releases that are under way to the snapshot, if any."""
        pending, self.pending_release = self.pending_release, None
        released = pending and pending.finish()
        if pending and released:
            self._remove_released(released, pending)

    def _remove_released(
        self, released: Released, pending: PendingRelease
    ) -> None:
        """Remove claims that this daemon released from the snapshot.

        Instances that it lacks, and instances that move, are read later.
        """
        self.releases.add(pending.instances, released.revision)
        if self.snapshot is None:
            return
        if self._journal.apply(released, self.snapshot.hosts):
            self._note_own(released.revision, pending.lineage, pending.sent_at)
        else:
            self._behind = self._stale = True

    @contextlib.contextmanager
    def writer(self) -> Iterator[Connection]:
        """Give the kept connection for writing."""
        self.finish_release()
        conn = self._writer.get()
        try:
            yield conn
        except errors.StoreUnavailable:
            self.drop()
            raise

    @contextlib.contextmanager
    def _loads(self) -> Iterator[None]:
        self.loading = True
        try:
            yield
            self._health.recover(SNAPSHOT)
        except errors.StoreUnavailable:
            raise
        except Exception as fault:
            self._health.degrade(
                SNAPSHOT,
                f'hosts cannot be brought up to date: {fault!r:.300}',
                'Hosts can be brought up to date again',
                logging.ERROR,
            )
            raise
        finally:
            self.loading = False

    def is_waiting(self) -> bool:
        """Whether the engine waits for an answer of the database.

        Any thread may call this. SQLite is never waited for.
        """
        return self._reader.is_waiting() or self._writer.is_waiting()

    def forget(self) -> None:
        """Drop what was computed from earlier options."""
        if self.snapshot is not None:
            self.snapshot.hosts.topology.clear()
            self.snapshot.hosts.load.clear()

    def drop(self) -> None:
        """Drop the connections; the next use opens them again.

        A pending claim may have been made or not: all changes are read
        again, this daemon's too.
        """
        self._behind = self._stale = True
        # Before the next decision, however long that takes.
        self._read_at = -_OLDEST_S
        self._reader.drop()
        self._writer.drop()

    @contextlib.contextmanager
    def raw_connection(self) -> Iterator[Connection]:
        """Give the kept connection for use below SQLAlchemy."""
        conn = self._reader.get()
        if self.pending is not None:
            # A connection executes statements in turn.
            self.pending.finish()
            self.pending = None
        try:
            yield conn
        except errors.StoreUnavailable:
            self.drop()
            raise

    @contextlib.contextmanager
    def autocommit_connection(self) -> Iterator[Connection]:
        """Give the kept connection that commits each statement by itself."""
        with (
            self.raw_connection() as conn,
            translate_errors(),
            conn.begin(),
        ):
            yield conn

    def _mark_refreshed(self, snapshot: Snapshot, start: float) -> Snapshot:
        # Other daemons may have written while it was read.
        self.refreshed_at, self._read_at = start, time.monotonic()
        self._own.clear()
        self._behind = self._stale = False
        self._newest = snapshot.revision, snapshot.lineage
        return snapshot
