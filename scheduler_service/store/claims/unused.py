"""Claims that nobody uses: whose answer was lost, or is of no use any more.

Stateless: every function runs on the thread that owns the writing
transaction, or has a connection of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.connection import Writer


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
    earlier = [
        row.uuid
        for row in _claimed(writer.conn, instances)
        if key is None or row.idempotency_key != key
    ]
    table = schema.moves
    moving = writer.conn.execute(
        sa.select(table.c.instance_uuid, table.c.idempotency_key).where(
            table.c.instance_uuid.in_(instances)
        )
    )
    moves = [
        row.instance_uuid
        for row in moving
        if key is None or row.idempotency_key != key
    ]
    released = lifecycle.release(writer, earlier, final=False)
    return sorted({*released, *lifecycle.drop_moves(writer, moves)})


def undo(writer: Writer, instances: Sequence[str], key: str) -> list[str]:
    """Release what a request claimed, and what its caller never knew of.

    What a host has confirmed stays, and what another request got as its
    answer.

    :param key: idempotency key of the request
    :return: the instances that held such a claim
    """
    conn = writer.conn
    claimed = [
        row for row in _claimed(conn, instances) if row.idempotency_key == key
    ]
    table = schema.moves
    moving = conn.execute(
        sa.select(
            table.c.instance_uuid.label('uuid'), table.c.created_at
        ).where(
            table.c.instance_uuid.in_(instances),
            table.c.idempotency_key == key,
        )
    ).all()
    unknown = [one.uuid for one in claimed if not _is_known(conn, one, key)]
    moves = [one.uuid for one in moving if not _is_known(conn, one, key)]
    released = lifecycle.release(writer, unknown, final=False)
    return sorted({*released, *lifecycle.drop_moves(writer, moves)})


def _claimed(conn: Connection, instances: Sequence[str]) -> Sequence[Any]:
    """Lock the unconfirmed claims of instances; return them."""
    table = schema.instances
    query = sa.select(
        table.c.uuid,
        table.c.host,
        table.c.node,
        table.c.idempotency_key,
        table.c.created_at,
    ).where(table.c.uuid.in_(instances), table.c.state == 'claimed')
    return conn.execute(query.order_by(table.c.uuid).with_for_update()).all()


def _is_known(conn: Connection, claim: Any, key: str) -> bool:
    """Whether another request got a claim as its answer.

    Such an answer is recorded as a whole.
    """
    table = schema.outcomes
    query = sa.select(table.c.idempotency_key).where(
        table.c.created_at >= claim.created_at,
        table.c.kind == outcomes.RESULT,
        table.c.idempotency_key != key,
        table.c.document.contains(claim.uuid, autoescape=True),
    )
    return conn.execute(query.limit(1)).first() is not None
