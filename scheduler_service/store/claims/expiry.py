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
    found = _late_claims(conn, before, _MOST)
    if moves:
        found += _late_moves(conn, before)
    locked = lifecycle.lock(conn, found)
    # The locked rows show what was confirmed, or claimed anew, since these
    # were found.
    claimed = [
        uuid
        for uuid, row in locked.items()
        if row.state == 'claimed' and row.created_at < before
    ]
    late = {
        uuid: move
        for uuid, move in lifecycle.moves_of(conn, locked).items()
        if moves and move.created_at < before and uuid not in claimed
    }
    return {
        'claims': len(lifecycle.release(writer, claimed)),
        'moves': len(lifecycle.release_moves(writer, late)),
    }
