"""Leases: work that one daemon at a time does for all that share the store.

The functions run on the thread that owns the writing transaction, a
:class:`Lease` on that of the work. Times are the database's, so the clocks of
the daemons do not matter.
"""

from __future__ import annotations

import platform
import time
import uuid

import sqlalchemy as sa

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Store, Writer


def take(writer: Writer, name: str, holder: str, seconds: float) -> bool:
    """Take or renew a lease; return whether *holder* has it now.

    :param seconds: after which another may take it, unless it is renewed
    """
    conn, table = writer.conn, schema.leases
    now = clock.read(conn)
    free = (table.c.holder == holder) | (table.c.expires_at <= now)
    expires_at = now + seconds
    taken = conn.execute(
        sa.update(table)
        .where(table.c.name == name, free)
        .values(holder=holder, expires_at=expires_at)
    )
    if taken.rowcount:
        return True
    lease = {'name': name, 'holder': holder, 'expires_at': expires_at}
    return rows.insert_missing(conn, table, lease)


def give_up(writer: Writer, name: str, holder: str) -> None:
    """Give up a lease, if *holder* has it, for others to take at once."""
    table = schema.leases
    writer.conn.execute(
        sa.update(table)
        .where(table.c.name == name, table.c.holder == holder)
        .values(expires_at=0.0)
    )


# How long a lease is valid without being renewed, in seconds: a holder that
# died is replaced within this time and one poll.
VALID_S = 4.0
_RENEW_S = 1.0


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

    def take(self) -> bool:
        """Take the lease, or keep it; return whether this daemon has it.

        :raises StoreUnavailable: the database does not answer
        """
        start = time.monotonic()
        taken = self._store.write(
            lambda writer: take(writer, self._name, self._holder, VALID_S)
        )
        if taken:
            self._renewed_at = start
        return taken

    def keep(self) -> None:
        """Renew the lease where that is due.

        :raises LeaseLost: another daemon has it
        """
        if time.monotonic() - self._renewed_at > _RENEW_S and not self.take():
            raise LeaseLost

    def give_up(self) -> None:
        """Let another daemon take it at once."""
        self._store.write(
            lambda writer: give_up(writer, self._name, self._holder)
        )
