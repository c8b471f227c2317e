"""Claims and moves that nobody confirmed in time.

Stateless: every function runs on the thread that owns the connection.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer

# How many claims one transaction releases at most.
_MOST = 500


def any_to_expire(
    conn: Connection, timeout: float, moves: bool = True
) -> bool:
    """Whether :func:`expire` would find something."""
    before = clock.read(conn) - timeout
    return bool(_late_claims(conn, before, 1)) or (
        moves and bool(_late_moves(conn, before))
    )


def _late_claims(conn: Connection, before: float, limit: int) -> list[str]:
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.state == 'claimed', table.c.created_at < before
    )
    return list(conn.execute(query.limit(limit)).scalars())


def _late_moves(conn: Connection, before: float) -> list[str]:
    table = schema.moves
    query = sa.select(table.c.instance_uuid)
    late = conn.execute(query.where(table.c.created_at < before))
    return list(late.scalars())


def expire(
    writer: Writer, timeout: float, moves: bool = True
) -> dict[str, int]:
    """Release claims and moves that were not confirmed in time.

    :param timeout: seconds since the claim, by the database's clock
    :param moves: false: moves are never late, others end them
    :return: how many ``claims`` and ``moves`` were released
    """
    conn = writer.conn
    before = clock.read(conn) - timeout
    late = _late_moves(conn, before) if moves else []
    dropped = lifecycle.drop_moves(writer, late)
    found = _late_claims(conn, before, _MOST)
    # The locked rows show which were confirmed since they were found.
    locked = lifecycle.lock(conn, found)
    still = [u for u, row in locked.items() if row.state == 'claimed']
    return {
        'claims': len(lifecycle.release(writer, still)),
        'moves': len(dropped),
    }
