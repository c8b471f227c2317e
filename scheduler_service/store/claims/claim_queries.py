"""Queries for claims: what callers got, and lists for operators.

Stateless: any thread may call it with a connection of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments
from scheduler_service.moments import Moment
from scheduler_service.store import clock, schema


def placements(
    conn: Connection, consumers: Sequence[str], moving: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the placement of each consumer that holds a claim.

    :param moving: of claims for moves, not of those for present places
    """
    table: Any = schema.moves if moving else schema.instances
    uuid = table.c.instance_uuid if moving else table.c.uuid
    query = sa.select(uuid, table.c.placement).where(
        uuid.in_(consumers), table.c.placement.is_not(None)
    )
    return {
        consumer: msgspec.json.decode(placement)
        for consumer, placement in conn.execute(query)
    }


def listing(
    conn: Connection,
    host: str | None = None,
    state: str | None = None,
    limit: int | None = None,
    project: str | None = None,
    older_than: Moment | None = None,
) -> list[dict[str, Any]]:
    """Return claims with their age, newest first; moves are separate claims.

    :param host: only claims on this service host
    :param state: only claims in this state: claimed, confirmed or moving
    :param project: only claims of instances of this project
    :param older_than: only claims that were made before this time, by the
        database's clock
    :param limit: how many at most; None: all
    """
    inst, moves = schema.instances, schema.moves
    claims = sa.union_all(
        sa.select(
            inst.c.uuid,
            inst.c.host,
            inst.c.node,
            inst.c.state,
            inst.c.project_id,
            inst.c.request_id,
            inst.c.created_at,
        ).where(inst.c.state != 'reported'),
        sa.select(
            moves.c.instance_uuid,
            moves.c.host,
            moves.c.node,
            sa.literal('moving'),
            inst.c.project_id,
            moves.c.request_id,
            moves.c.created_at,
        ).select_from(
            moves.outerjoin(inst, inst.c.uuid == moves.c.instance_uuid)
        ),
    ).subquery()
    now = clock.read(conn)
    query = sa.select(claims)
    for column, value in (
        (claims.c.host, host),
        (claims.c.state, state),
        (claims.c.project_id, project),
    ):
        if value is not None:
            query = query.where(column == value)
    if older_than is not None:
        query = query.where(
            claims.c.created_at < moments.stamp(older_than, now)
        )
    ordered = query.order_by(claims.c.created_at.desc(), claims.c.uuid)
    return [
        {**row._mapping, 'age_s': round(max(now - row.created_at, 0.0))}
        for row in conn.execute(ordered.limit(limit))
    ]


def show(conn: Connection, uuid: str) -> dict[str, Any]:
    """Return an instance's state, hosts and allocations.

    :raises ClaimNotFound: the instance holds no claim
    """
    inst, moves = schema.instances, schema.moves
    held, hosts = schema.allocations, schema.hosts
    row = conn.execute(sa.select(inst).where(inst.c.uuid == uuid)).first()
    move = conn.execute(
        sa.select(moves).where(moves.c.instance_uuid == uuid)
    ).first()
    allocated: dict[str, dict[str, int]] = {}
    query = (
        sa.select(held, hosts.c.host)
        .outerjoin(hosts, hosts.c.id == held.c.host_id)
        .where(held.c.consumer_uuid == uuid)
        .order_by(held.c.host_id, held.c.resource_class)
    )
    for part in conn.execute(query):
        place = part.host or f'host id {part.host_id}'
        allocated.setdefault(place, {})[part.resource_class] = part.amount
    unclaimed = row is None or row.state == 'reported'
    if unclaimed and move is None and not allocated:
        raise errors.ClaimNotFound(f'{uuid} holds no claim', uuid=uuid)
    return {
        'uuid': uuid,
        'state': row.state if row else 'unknown',
        'host': row.host if row else None,
        'node': row.node if row else None,
        'moves_to': move.host if move else None,
        'project_id': row.project_id if row else None,
        'request_id': row.request_id if row else None,
        'created_at': row.created_at if row else None,
        'allocations': allocated,
    }
