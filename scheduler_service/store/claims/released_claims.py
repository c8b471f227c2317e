"""Claims that are released without their callers' asking.

They were not confirmed in time, a later request takes their place, or the
answer was lost or is of no use any more. Stateless: every function runs on
the thread that owns the writing transaction, or has a connection of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, schema
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.connection import Writer

# How many claims one transaction expires at most.
_MOST = 500


def run_somewhere(conn: Connection, instances: Sequence[str]) -> bool:
    """Whether a host has one of these instances, by what was reported."""
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.uuid.in_(instances), table.c.state != 'claimed'
    )
    return conn.execute(query.limit(1)).first() is not None


def supersede(
    writer: Writer, instances: Sequence[str], key: str | None
) -> list[str]:
    """Release what earlier requests claimed for instances.

    What a host has confirmed stays; of an instance that moves, only the place
    that it was to move to is released.

    :param key: idempotency key of the request that is made now, whose own
        claims stay
    :return: the instances that held such a claim
    """
    locked = lifecycle.lock(writer.conn, instances)
    moves = lifecycle.moves_of(writer.conn, locked)
    earlier = [
        uuid
        for uuid, row in locked.items()
        if row.state == 'claimed'
        and (key is None or row.idempotency_key != key)
    ]
    moving = {
        uuid: move
        for uuid, move in moves.items()
        if uuid not in earlier and (key is None or move.idempotency_key != key)
    }
    released = lifecycle.release(writer, earlier, final=False)
    return sorted({*released, *lifecycle.release_moves(writer, moving)})


def give_up(
    writer: Writer,
    places: Mapping[str, tuple[str, str]],
    moves: bool,
    key: str | None = None,
    final: bool = False,
) -> list[str]:
    """Release claims that are given up.

    Claims that another request made elsewhere for an instance since stay.

    :param places: instance -> the service host and the node of its claim
    :param moves: whether they are the second claims of instances
    :param key: idempotency key of their request: where it has its answer by
        now, all of them stay
    :param final: as for :func:`lifecycle.release`
    :return: the instances that had such a claim
    """
    locked = lifecycle.lock(writer.conn, places)
    if key is not None and outcomes.is_answered(writer.conn, key):
        return []
    placed = lifecycle.moves_of(writer.conn, locked) if moves else locked
    mine = {
        uuid: row
        for uuid, row in placed.items()
        if (row.host, row.node) == places[uuid]
    }
    if moves:
        return lifecycle.release_moves(writer, mine, final)
    return lifecycle.release(writer, sorted(mine), final=final)


def undo(writer: Writer, instances: Sequence[str], key: str) -> list[str]:
    """Release the claims of a request whose caller did not get them.

    Confirmed claims stay, and so do claims that another request got as its
    answer.

    :param key: idempotency key of the request
    :return: the instances that held such a claim
    """
    conn = writer.conn
    locked = lifecycle.lock(conn, instances)
    moves = lifecycle.moves_of(conn, locked)
    unknown = [
        uuid
        for uuid, row in locked.items()
        if row.state == 'claimed'
        and row.idempotency_key == key
        and not _was_returned(conn, uuid, row.created_at, key)
    ]
    moving = {
        uuid: move
        for uuid, move in moves.items()
        if uuid not in unknown
        and move.idempotency_key == key
        and not _was_returned(conn, uuid, move.created_at, key)
    }
    released = lifecycle.release(writer, unknown, final=False)
    return sorted({*released, *lifecycle.release_moves(writer, moving)})


def _was_returned(
    conn: Connection, uuid: str, claimed_at: float, key: str
) -> bool:
    """Whether another request got an instance's claim as its answer.

    Such an answer is recorded as a whole.
    """
    table = schema.outcomes
    query = sa.select(table.c.idempotency_key).where(
        table.c.created_at >= claimed_at,
        table.c.kind == outcomes.RESULT,
        table.c.idempotency_key != key,
        table.c.document.contains(uuid, autoescape=True),
    )
    return conn.execute(query.limit(1)).first() is not None


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
    :param moves: false: moves never expire: another service ends them
    :return: how many ``claims`` and ``moves`` were released
    """
    conn = writer.conn
    before = clock.read(conn) - timeout
    late = _late_claims(conn, before, _MOST)
    if moves:
        late += _late_moves(conn, before)
    locked = lifecycle.lock(conn, late)
    # The locked rows show what was confirmed, or claimed anew, since they
    # were read.
    claimed = [
        uuid
        for uuid, row in locked.items()
        if row.state == 'claimed' and row.created_at < before
    ]
    late_moves = {
        uuid: move
        for uuid, move in lifecycle.moves_of(conn, locked).items()
        if moves and move.created_at < before and uuid not in claimed
    }
    return {
        'claims': len(lifecycle.release(writer, claimed)),
        'moves': len(lifecycle.release_moves(writer, late_moves)),
    }
