"""Leases: work that one daemon at a time does for all that share the store.

Stateless: runs on the thread that owns the writing transaction. Times are the
database's, so the clocks of the daemons do not matter.
"""

from __future__ import annotations

import sqlalchemy as sa

from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Writer


def take(writer: Writer, name: str, holder: str, seconds: float) -> bool:
    """Take or renew a lease; return whether *holder* has it now.

    :param seconds: after which another may take it, unless it is renewed
    :raises DBDuplicateEntry: another took it for the first time just now
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
    known = sa.select(table.c.name).where(table.c.name == name)
    if conn.execute(known).first() is not None:
        return False
    conn.execute(
        table.insert(),
        {'name': name, 'holder': holder, 'expires_at': expires_at},
    )
    return True


def give_up(writer: Writer, name: str, holder: str) -> None:
    """Give up a lease, if *holder* has it, for others to take at once."""
    table = schema.leases
    writer.conn.execute(
        sa.update(table)
        .where(table.c.name == name, table.c.holder == holder)
        .values(expires_at=0.0)
    )


def holder_of(writer: Writer, name: str) -> str | None:
    """Return who has a lease; None where nobody has it."""
    table = schema.leases
    now = clock.read(writer.conn)
    query = sa.select(table.c.holder).where(
        table.c.name == name, table.c.expires_at > now
    )
    found = writer.conn.execute(query).scalar()
    return None if found is None else str(found)
