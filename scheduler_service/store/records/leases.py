"""Leases: work that one daemon at a time does for all that share the store.

A :class:`Lease` belongs to the thread of the work. Times are the database's,
so the clocks of the daemons do not matter.

How far the compute service has ever been mirrored into this store stands here
too, since it is its lease's holder who writes it.
"""

from __future__ import annotations

import contextlib
import enum
import platform
import time
import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Store, Writer

# How long a lease is valid without being renewed, in seconds: a holder that
# died is replaced within this time and one poll.
VALID_S = 4.0
_RENEW_S = 1.0
_NAME = 'mirror_progress'


def new_holder(server: str | None) -> str:
    """Return a name of this daemon that no other has.

    :param server: its configured name, which several may have; None: the
        host's
    """
    return f'{(server or platform.node())[:200]}/{uuid.uuid4().hex[:8]}'


class LeaseLost(Exception):
    """Another daemon writes now."""


class Lease:
    """A lease of the store.

    :param name: of the work
    :param holder: this daemon's name, which no other has
    """

    def __init__(self, store: Store, name: str, holder: str) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._renewed_at = 0.0
        # When the lease of another holder ends, and since when that is so, by
        # this daemon's monotonic clock.
        self._ends_at = self._same_since = 0.0

    def take(self) -> bool:
        """Take the lease, or keep it; return whether this daemon has it.

        :raises StoreUnavailable: the database does not answer
        """
        start = time.monotonic()
        taken = self._store.write(self._take)
        if taken:
            self._renewed_at = start
        return taken

    def _take(self, writer: Writer) -> bool:
        conn, table = writer.conn, schema.leases
        now = clock.read(conn)
        free = (table.c.holder == self._holder) | (table.c.expires_at <= now)
        mine = {'holder': self._holder, 'expires_at': now + VALID_S}
        taken = conn.execute(
            sa.update(table)
            .where(table.c.name == self._name, free)
            .values(mine)
        )
        return (
            bool(taken.rowcount)
            or rows.insert_missing(conn, table, {'name': self._name, **mine})
            or self._take_over(conn, mine)
        )

    def _take_over(self, conn: Connection, mine: dict[str, Any]) -> bool:
        """Take a lease that is not renewed, though it is valid.

        The database's clock was set back since it was.
        """
        its = schema.leases.c
        ends_at = conn.execute(
            sa.select(its.expires_at).where(its.name == self._name)
        ).scalar_one()
        now = time.monotonic()
        if ends_at != self._ends_at:
            self._ends_at, self._same_since = ends_at, now
        if now - self._same_since <= VALID_S:
            return False
        taken = conn.execute(
            sa.update(schema.leases)
            .where(its.name == self._name, its.expires_at == ends_at)
            .values(mine)
        )
        return bool(taken.rowcount)

    def is_fresh(self) -> bool:
        """Whether it was taken or renewed so lately that none is due."""
        return time.monotonic() - self._renewed_at <= _RENEW_S

    def keep(self) -> None:
        """Renew the lease where that is due.

        :raises LeaseLost: another daemon has it
        """
        if not self.is_fresh() and not self.take():
            raise LeaseLost

    def give_up(self) -> None:
        """Let another daemon take it at once, if this one has it.

        Where the database does not answer, it expires by itself.
        """
        if not self._renewed_at:
            return
        self._renewed_at = 0.0
        table = schema.leases
        mine = (table.c.name == self._name) & (table.c.holder == self._holder)
        with contextlib.suppress(errors.StoreUnavailable):
            self._store.write(
                lambda writer: writer.conn.execute(
                    sa.update(table).where(mine).values(expires_at=0.0)
                )
            )


class Progress(enum.IntEnum):
    """What one complete pass has brought so far."""

    NOTHING = 0
    # All cells that could be read, as a whole.
    HOSTS = 1
    # After that, the capacity of these hosts from the placement service.
    CAPACITY = 2


def mirror_progress(conn: Connection) -> Progress:
    """Return how far it came."""
    table = schema.counters
    query = sa.select(table.c.value).where(table.c.name == _NAME)
    return Progress(conn.execute(query).scalar() or Progress.NOTHING)


def record_mirror_progress(writer: Writer, progress: Progress) -> None:
    """Record how far it came, unless it came further before."""
    conn, table = writer.conn, schema.counters
    rows.insert_missing(conn, table, {'name': _NAME, 'value': 0})
    conn.execute(
        sa.update(table)
        .where(table.c.name == _NAME, table.c.value < int(progress))
        .values(value=int(progress))
    )
