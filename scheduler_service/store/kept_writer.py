"""Transactions of one thread, on a connection that stays open.

Taking a connection from the pool checks it with a round trip each time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store.connection import Store, Writer

T = TypeVar('T')
# A connection that was idle for longer may be closed by now, in seconds.
_IDLE_S = 10.0


class KeptWriter:
    """Runs transactions; belongs to one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._conn: Connection | None = None
        self._used_at = 0.0

    def write(self, work: Callable[[Writer], T]) -> T:
        """Run *work* in one transaction; return what it returns.

        Where the connection turns out to be lost, *work* is run once more on
        a new one, so running it twice must do no harm.

        :raises StoreUnavailable: the database does not answer
        """
        if time.monotonic() - self._used_at > _IDLE_S:
            self.close()
        kept = self._conn is not None
        try:
            return self._write(work)
        except errors.StoreTimeout:
            raise
        except errors.StoreUnavailable:
            if not kept:
                raise
            return self._write(work)

    def _write(self, work: Callable[[Writer], T]) -> T:
        if self._conn is None:
            self._conn = self._store.hold()
        try:
            result = self._store.write(work, self._conn)
        except BaseException:
            with contextlib.suppress(Exception):
                self._conn.invalidate()
            self.close()
            raise
        self._used_at = time.monotonic()
        return result

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(Exception):
                conn.close()
