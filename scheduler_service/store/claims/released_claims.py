"""Claims that are released without a request of their callers.

They were not confirmed in time, a later request takes their place, or the
answer was lost or is of no use any more. Stateless: every function runs on
the thread that owns the writing transaction, or has a connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, schema
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.connection import Writer

# How many claims a transaction expires at most.
_MOST = 500


def run_somewhere(conn: Connection, instances: Sequence[str]) -> bool:
    """Whether a host reported any of these instances."""
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.uuid.in_(instances), table.c.state != 'claimed'
    )
    return conn.execute(query.limit(1)).first() is not None


def supersede(
    writer: Writer, instances: Sequence[str], key: str | None
) -> list[str]:
    """Release what earlier requests claimed for instances.

    Confirmed claims stay; of an instance that moves, only the claim on its
    new host is released.

    :param key: idempotency key of the request that is made now, whose own
        claims stay
    :return: the instances that held such a claim
    """
    claims, moves = _release(
        writer,
        instances,
        lambda _, row: key is None or row.idempotency_key != key,
        final=False,
    )
    return sorted({*claims, *moves})


def _release(
    writer: Writer,
    instances: Sequence[str],
    is_mine: Callable[[str, Any], bool],
    final: bool = True,
    moves: bool = True,
) -> tuple[list[str], list[str]]:
    """Release claims and moves of instances that are not confirmed.

    The locked rows show what was confirmed, or claimed anew, since they were
    read.

    :param is_mine: whether to release a claim, by its instance and its row
    :param final: as for :func:`lifecycle.release`, of claims
    :param moves: false: no moves
    """
    locked = lifecycle.lock(writer.conn, instances)
    moving = lifecycle.moves_of(writer.conn, locked) if moves else {}
    claimed = [
        uuid
        for uuid, row in locked.items()
        if row.state == 'claimed' and is_mine(uuid, row)
    ]
    late = {
        uuid: move
        for uuid, move in moving.items()
        if uuid not in claimed and is_mine(uuid, move)
    }
    return (
        lifecycle.release(writer, claimed, final=final),
        lifecycle.release_moves(writer, late),
    )


def give_up(
    writer: Writer,
    places: Mapping[str, tuple[str, str]],
    moves: bool,
    key: str | None = None,
    final: bool = False,
) -> list[str]:
    """Release claims that are given up.

    Claims that another request made elsewhere for an instance since stay, and
    so do those that another request got as its answer.

    :param places: instance -> the service host and the node of its claim
    :param moves: whether they are the second claims of instances
    :param key: idempotency key of their request: where it has its answer by
        now, all of them stay
    :param final: as for :func:`lifecycle.release`
    :return: the instances that had such a claim
    """
    locked = lifecycle.lock(writer.conn, places)
    if key is not None and any(
        outcome.kind == outcomes.RESULT and not outcome.instance
        for outcome in outcomes.find(writer.conn, key)
    ):
        return []
    placed = lifecycle.moves_of(writer.conn, locked) if moves else locked
    mine = {
        uuid: row
        for uuid, row in placed.items()
        if (row.host, row.node) == places[uuid]
        and (
            key is None
            or not _was_returned(writer.conn, uuid, row.created_at, key)
        )
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
    claims, moves = _release(
        writer,
        instances,
        lambda uuid, row: (
            row.idempotency_key == key
            and not _was_returned(writer.conn, uuid, row.created_at, key)
        ),
        final=False,
    )
    return sorted({*claims, *moves})


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
    conn: Connection,
    timeout: float,
    moves: bool = True,
    now: float | None = None,
) -> bool:
    """Whether :func:`expire` would release any claim."""
    now = clock.read(conn) if now is None else now
    return bool(_late(conn, now, timeout, moves, 1))


def _late(
    conn: Connection, now: float, timeout: float, moves: bool, most: int
) -> dict[str, set[float]]:
    """Return the times of late claims and moves, by instance."""
    claims, moving = schema.instances.c, schema.moves.c
    query = sa.select(claims.uuid, claims.created_at).where(
        claims.state == 'claimed',
        claims.kind == 'instance',
        clock.is_older(claims.created_at, now, timeout),
    )
    late = list(conn.execute(query.limit(most)))
    if moves:
        query = sa.select(moving.instance_uuid, moving.created_at)
        query = query.where(clock.is_older(moving.created_at, now, timeout))
        late += conn.execute(query)
    times: dict[str, set[float]] = {}
    for uuid, created_at in late:
        times.setdefault(uuid, set()).add(created_at)
    return times


def expire(
    writer: Writer,
    timeout: float,
    moves: bool = True,
    now: float | None = None,
) -> dict[str, int]:
    """Release claims and moves that were not confirmed in time.

    :param timeout: seconds since the claim, by the database's clock
    :param moves: false: moves never expire: another service ends them
    :param now: the time, where it was read in this transaction
    :return: how many ``claims`` and ``moves`` were released
    """
    now = clock.read(writer.conn) if now is None else now
    late = _late(writer.conn, now, timeout, moves, _MOST)
    expired = _release(
        writer,
        sorted(late),
        # Those that were made anew meanwhile stay.
        lambda uuid, row: row.created_at in late[uuid],
        moves=moves,
    )
    return dict(zip(('claims', 'moves'), map(len, expired), strict=True))
