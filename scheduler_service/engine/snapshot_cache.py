"""Keeps the snapshot: loads it, brings it up to date, moves it on."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.store import claims
from scheduler_service.store.connection import Store, translate_errors
from scheduler_service.store.reading import change_feed, loading


class SnapshotCache:
    """The engine's view of the store.

    The engine's thread alone calls it; anyone may read ``snapshot``.

    :ivar snapshot: the newest version, None before the first load
    :ivar refreshed_at: monotonic time at which it was known to be current
    :ivar under_way: the claim that the held connection is busy with
    """

    def __init__(self, store: Store, max_age: float) -> None:
        self.store = store
        self.snapshot: Snapshot | None = None
        self.refreshed_at = 0.0
        self.under_way: claims.PendingClaim | None = None
        self._max_age = max_age
        self._own: set[int] = set()
        self._behind = False
        self._reader: Connection | None = None
        self._writer: Connection | None = None

    def load(self) -> Snapshot:
        """Load everything anew.

        :raises StoreUnavailable: the database does not answer
        """
        with self._held() as conn:
            self.snapshot = loading.snapshot(conn)
        self._refreshed()
        return self.snapshot

    def current(self) -> Snapshot:
        """Return the snapshot, brought up to date if it is too old."""
        age = time.monotonic() - self.refreshed_at
        if self.snapshot is None or self._behind or age > self._max_age:
            return self.refresh()
        return self.snapshot

    def refresh(self) -> Snapshot:
        """Bring the snapshot up to date now.

        :raises StoreUnavailable: the database does not answer
        """
        if self.snapshot is None:
            return self.load()
        with self._held() as conn:
            self.snapshot = change_feed.refresh(conn, self.snapshot, self._own)
        self._refreshed()
        return self.snapshot

    def advance(self, hosts: HostTable, revision: int) -> None:
        """Move on by what this process wrote itself.

        Where others wrote in between, their changes are read before the next
        decision.
        """
        assert self.snapshot is not None
        if revision == self.snapshot.revision + 1:
            self.snapshot = Snapshot(hosts, self.snapshot.pools, revision)
        else:
            self.snapshot = dataclasses.replace(self.snapshot, hosts=hosts)
            self._own.add(revision)
            self._behind = True

    @contextlib.contextmanager
    def writer(self) -> Iterator[Connection]:
        """Give the held connection for writing.

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
    def single(self) -> Iterator[Connection]:
        """Give the held connection that commits each statement by itself.

        :raises StoreUnavailable: the database does not answer
        """
        with self._held() as conn:
            yield conn

    def drop(self) -> None:
        """Let go of the connections; the next use makes new ones.

        What was under way may have happened: others' and our own changes
        are all read again.
        """
        self._behind = True
        for conn in (self._reader, self._writer):
            if conn is not None:
                with contextlib.suppress(Exception):
                    conn.invalidate()
                    conn.close()
        self._reader = self._writer = None

    @contextlib.contextmanager
    def direct(self) -> Iterator[Connection]:
        """Give the same connection for use below SQLAlchemy.

        :raises StoreUnavailable: the database does not answer
        """
        if self._reader is None:
            self._reader = self.store.hold().execution_options(
                isolation_level='AUTOCOMMIT'
            )
        if self.under_way is not None:
            # The database answers one thing after the other.
            self.under_way.finish()
            self.under_way = None
        try:
            yield self._reader
        except errors.StoreUnavailable:
            self.drop()
            raise

    @contextlib.contextmanager
    def _held(self) -> Iterator[Connection]:
        with self.direct() as conn, translate_errors(), conn.begin():
            yield conn

    def _refreshed(self) -> None:
        self.refreshed_at = time.monotonic()
        self._own.clear()
        self._behind = False
