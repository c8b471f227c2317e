"""Queries for claims: what callers got; counts and lists for operators.

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
from scheduler_service.store.claims import claim_sql

# Names of ages, and their upper limits in seconds.
AGES = (
    ('1m', 60.0),
    ('10m', 600.0),
    ('1h', 3600.0),
    ('1d', 86_400.0),
    ('older', None),
)
_CLAIMS = ('claimed', 'confirmed')


def placements(
    conn: Connection,
    consumers: Sequence[str],
    moving: bool = False,
    kind: str = 'instance',
) -> dict[str, dict[str, Any]]:
    """Return the placement of each consumer that holds a claim.

    :param moving: of claims for moves, not of those for present places
    :param kind: of the consumers: ``instance`` or ``pod``
    :raises Conflict: a uuid is that of a consumer of the other kind
    """
    table: Any = schema.moves if moving else schema.instances
    uuid = table.c.instance_uuid if moving else table.c.uuid
    query = sa.select(
        uuid,
        table.c.placement,
        sa.literal('instance') if moving else table.c.kind,
    ).where(uuid.in_(consumers))
    placed = {}
    for consumer, placement, stored in conn.execute(query):
        if stored != kind:
            raise errors.Conflict(
                f'{consumer} is the uuid of an existing {stored}, and cannot '
                f'be that of a new {kind}',
                uuid=consumer,
                kind=stored,
            )
        if placement is not None:
            placed[consumer] = msgspec.json.decode(placement)
    return placed


def pods(conn: Connection, uuids: Sequence[str]) -> dict[str, str]:
    """Return which of these uuids are pods, and which pods on which hosts."""
    inst = schema.instances.c
    query = sa.select(inst.uuid, inst.request_id, inst.host).where(
        inst.uuid.in_(uuids), inst.kind == 'pod'
    )
    return {
        uid: f'pod {name} on {host}' for uid, name, host in conn.execute(query)
    }


def held_of(
    conn: Connection, providers: Sequence[int], instance: str
) -> dict[str, int]:
    """Return what an instance holds of a host, by resource class.

    :param providers: the host, and aggregates that give it a class
    """
    table = schema.allocations
    query = sa.select(table.c.resource_class, table.c.amount).where(
        table.c.consumer_uuid == instance, table.c.host_id.in_(providers)
    )
    return {row.resource_class: row.amount for row in conn.execute(query)}


def listing(
    conn: Connection,
    host: str | None = None,
    state: str | None = None,
    limit: int | None = None,
    project: str | None = None,
    older_than: Moment | None = None,
    oldest: bool = False,
) -> list[dict[str, Any]]:
    """Return claims with their age, newest first; moves are separate claims.

    :param host: only claims on this service host
    :param state: only claims in this state: claimed, confirmed or moving
    :param project: only claims of instances of this project
    :param older_than: only claims that were made before this time, by the
        database's clock
    :param limit: how many at most; None: all
    :param oldest: whether the oldest come first
    """
    inst, moves = schema.instances, schema.moves
    claims = sa.union_all(
        sa.select(
            inst.c.uuid,
            inst.c.host,
            inst.c.node,
            inst.c.state,
            inst.c.kind,
            inst.c.project_id,
            inst.c.request_id,
            inst.c.created_at,
        ).where(inst.c.state != 'reported'),
        sa.select(
            moves.c.instance_uuid,
            moves.c.host,
            moves.c.node,
            sa.literal('moving'),
            sa.literal('instance'),
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
    made = claims.c.created_at if oldest else claims.c.created_at.desc()
    ordered = query.order_by(made, claims.c.uuid)
    return [
        {
            **row._mapping,
            'created_at': moments.text(row.created_at),
            'age_s': round(max(now - row.created_at, 0.0)),
        }
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
    giver = sa.literal('aggregate ').concat(schema.aggregates.c.name)
    query = (
        sa.select(held, sa.func.coalesce(hosts.c.host, giver).label('host'))
        .outerjoin(hosts, hosts.c.id == held.c.host_id)
        .outerjoin(schema.aggregates, claim_sql.is_of_aggregate(held))
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
        'kind': row.kind if row else 'instance',
        'state': row.state if row else 'unknown',
        'host': row.host if row else None,
        'node': row.node if row else None,
        'moves_to': move.host if move else None,
        'project_id': row.project_id if row else None,
        'request_id': row.request_id if row else None,
        'created_at': row.created_at if row else None,
        'allocations': allocated,
    }


def count(conn: Connection) -> dict[tuple[str, str], int]:
    """Return the number of claims by (state, age), also where it is 0.

    States are ``claimed``, ``confirmed``, and ``moving`` for the second
    claims of moves. A claim counts under the lowest limit of :data:`AGES`
    that it has not passed.
    """
    states = (*_CLAIMS, 'moving')
    counts = {(state, age): 0 for state in states for age, _ in AGES}
    now = clock.read(conn)
    inst, number = schema.instances.c, sa.func.count()
    age = _age(inst.created_at, now)
    moving = _age(schema.moves.c.created_at, now)
    query = sa.union_all(
        sa.select(inst.state, age, number)
        .where(inst.state.in_(_CLAIMS))
        .group_by(inst.state, age),
        sa.select(sa.literal('moving'), moving, number).group_by(moving),
    )
    for state, name, claims in conn.execute(query):
        counts[state, name] = claims
    return counts


def _age(created_at: sa.Column[float], now: float) -> sa.Case[str]:
    # Literals: a database treats two expressions with parameters as different,
    # and then does not group by the selected one.
    younger: list[Any] = [
        (created_at >= sa.literal_column(repr(now - limit)),
         sa.literal_column(f"'{name}'"))
        for name, limit in AGES
        if limit is not None
    ]  # fmt: skip
    return sa.case(*younger, else_=sa.literal_column(f"'{AGES[-1][0]}'"))
