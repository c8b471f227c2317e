"""How far the compute service has been mirrored into this store, ever.

Stateless: runs on the thread that owns the connection. The row is among the
counters.
"""

from __future__ import annotations

import enum

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.connection import Writer

_NAME = 'mirror_progress'


class Progress(enum.IntEnum):
    """What one complete pass has brought so far."""

    NOTHING = 0
    # All cells that could be read, as a whole.
    HOSTS = 1
    # After that, the capacity of these hosts from the placement service.
    CAPACITY = 2


def read(conn: Connection) -> Progress:
    """Return how far it came."""
    table = schema.counters
    query = sa.select(table.c.value).where(table.c.name == _NAME)
    value = conn.execute(query).scalar()
    return Progress.NOTHING if value is None else Progress(value)


def record(writer: Writer, progress: Progress) -> None:
    """Record how far it came, unless it came further before.

    :raises DBDuplicateEntry: another daemon made the first record just now
    """
    conn, table = writer.conn, schema.counters
    reached = max(progress, read(conn))
    mine = table.c.name == _NAME
    if conn.execute(sa.select(table.c.value).where(mine)).first() is None:
        conn.execute(table.insert(), {'name': _NAME, 'value': int(reached)})
    else:
        conn.execute(sa.update(table).where(mine).values(value=int(reached)))
