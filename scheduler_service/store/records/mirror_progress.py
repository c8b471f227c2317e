"""How far the compute service has been mirrored into this store, ever."""

from __future__ import annotations

import enum

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import rows, schema
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
    return Progress(conn.execute(query).scalar() or Progress.NOTHING)


def record(writer: Writer, progress: Progress) -> None:
    """Record how far it came, unless it came further before."""
    conn, table = writer.conn, schema.counters
    rows.insert_missing(conn, table, {'name': _NAME, 'value': 0})
    conn.execute(
        sa.update(table)
        .where(table.c.name == _NAME, table.c.value < int(progress))
        .values(value=int(progress))
    )
