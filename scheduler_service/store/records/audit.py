"""Compares use with allocations, and corrects what differs.

Stateless: any thread may call it with a connection of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer

_SHOWN = 1000


class Finding(msgspec.Struct, kw_only=True):
    """One inconsistency.

    :ivar kind: ``used`` (use is not what is reported plus allocated),
        ``overcommitted`` (more is allocated than the limit), ``orphaned`` (an
        allocation of something that the host does not offer any more),
        ``unknown`` (the allocation's consumer is not known) or ``move`` (the
        instance that moves is not known)
    """

    kind: str
    host: str | None = None
    resource_class: str | None = None
    consumer: str | None = None
    text: str


class Audit(msgspec.Struct):
    """How many rows were checked, and at most 1,000 findings of each kind."""

    inventories: int
    allocations: int
    claims: int
    findings: list[Finding]


def audit(conn: Connection, fallback: Mapping[str, float]) -> Audit:
    """Check everything that claims write; nothing is changed.

    :param fallback: resource class -> allocation ratio of hosts without one
    """

    def count(table: Any, *where: Any) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(*where)
        return int(conn.execute(query).scalar_one())

    inst = schema.instances
    return Audit(
        inventories=count(schema.inventories),
        allocations=count(schema.allocations),
        claims=count(inst, inst.c.state != 'reported'),
        findings=[
            *_wrong_use(conn),
            *_overcommitted(conn, fallback),
            *_orphaned(conn),
            *_unknown(conn),
            *_lost_moves(conn),
        ],
    )


def fix(writer: Writer) -> int:
    """Correct what can be corrected; return how many rows that were.

    Allocations without an inventory or of unknown consumers are released,
    and use is set to what is reported plus what is allocated. A host that is
    overcommitted stays so: instances have to be moved away from it.
    """
    conn = writer.conn
    _drop_moves(writer)
    unknown = sorted(
        {one.consumer for one in _unknown(conn, None) if one.consumer}
    )
    released = (
        lifecycle.release_allocations(writer, unknown) if unknown else set()
    )
    return len(released) + _drop_orphaned(writer) + _correct_use(writer)


def _allocated() -> Any:
    """Return the amount that is allocated of an inventory.

    A subquery for each: MariaDB has no index on sums of all.
    """
    offered, held = schema.inventories, schema.allocations
    return (
        sa.select(sa.func.coalesce(sa.func.sum(held.c.amount), 0))
        .where(
            held.c.host_id == offered.c.host_id,
            held.c.resource_class == offered.c.resource_class,
        )
        .scalar_subquery()
    )


def _differing(limit: int | None) -> Any:
    """Return the query for inventories with the wrong use."""
    offered, hosts = schema.inventories, schema.hosts
    right = (offered.c.reported + _allocated()).label('right_use')
    return (
        sa.select(
            offered.c.host_id,
            offered.c.resource_class,
            offered.c.used,
            right,
            hosts.c.host,
        )
        .outerjoin(hosts, hosts.c.id == offered.c.host_id)
        .where(offered.c.used != right)
        .order_by(offered.c.host_id, offered.c.resource_class)
        .limit(limit)
    )


def _wrong_use(conn: Connection) -> list[Finding]:
    return [
        Finding(
            kind='used',
            host=row.host,
            resource_class=row.resource_class,
            text=f'{row.used} are used, {row.right_use} are reported and '
            'allocated',
        )
        for row in conn.execute(_differing(_SHOWN))
    ]


def _overcommitted(
    conn: Connection, fallback: Mapping[str, float]
) -> list[Finding]:
    """Find inventories of which claims hold more than the limit allows.

    A host that exceeds its limit by what it reports itself is not
    overcommitted by claims.
    """
    offered, hosts = schema.inventories, schema.hosts
    default = sa.case(
        dict(fallback) or {'': 1.0},
        value=offered.c.resource_class,
        else_=1.0,
    )
    ratio = sa.func.coalesce(
        sa.func.nullif(offered.c.allocation_ratio, 0), default
    )
    limit = ((offered.c.total - offered.c.reserved) * ratio).label('most')
    query = (
        sa.select(
            offered.c.resource_class, offered.c.used, limit, hosts.c.host
        )
        .join(hosts, hosts.c.id == offered.c.host_id)
        .where(
            offered.c.used > limit,
            offered.c.used > offered.c.reported,
            # A host with 0 vCPUs does not collect these figures.
            ~((offered.c.resource_class == 'VCPU') & (offered.c.total == 0)),
        )
        .order_by(hosts.c.host, offered.c.resource_class)
        .limit(_SHOWN)
    )
    return [
        Finding(
            kind='overcommitted',
            host=row.host,
            resource_class=row.resource_class,
            text=f'{row.used} are used, {float(row.most):g} may be',
        )
        for row in conn.execute(query)
    ]


def _orphaned(conn: Connection) -> list[Finding]:
    held, offered = schema.allocations, schema.inventories
    query = (
        sa.select(held)
        .outerjoin(
            offered,
            (offered.c.host_id == held.c.host_id)
            & (offered.c.resource_class == held.c.resource_class),
        )
        .where(offered.c.host_id.is_(None))
        .order_by(held.c.consumer_uuid)
        .limit(_SHOWN)
    )
    return [
        Finding(
            kind='orphaned',
            resource_class=row.resource_class,
            consumer=row.consumer_uuid,
            text=f'{row.amount} are allocated of what is not offered any '
            f'more (host id {row.host_id})',
        )
        for row in conn.execute(query)
    ]


def _unknown(conn: Connection, limit: int | None = _SHOWN) -> list[Finding]:
    held, inst = schema.allocations, schema.instances
    query = (
        sa.select(held.c.consumer_uuid)
        .distinct()
        .outerjoin(inst, inst.c.uuid == held.c.consumer_uuid)
        .where(inst.c.uuid.is_(None))
        .order_by(held.c.consumer_uuid)
        .limit(limit)
    )
    return [
        Finding(
            kind='unknown',
            consumer=uuid,
            text='holds allocations, but no instance is known by this uuid',
        )
        for uuid in conn.execute(query).scalars()
    ]


def _lost_moves(conn: Connection) -> list[Finding]:
    moves, inst = schema.moves, schema.instances
    query = (
        sa.select(moves)
        .outerjoin(inst, inst.c.uuid == moves.c.instance_uuid)
        .where(inst.c.uuid.is_(None))
        .limit(_SHOWN)
    )
    return [
        Finding(
            kind='move',
            host=row.host,
            consumer=row.instance_uuid,
            text='moves here, but no instance is known by this uuid',
        )
        for row in conn.execute(query)
    ]


def _drop_moves(writer: Writer) -> None:
    lost = [one.consumer for one in _lost_moves(writer.conn) if one.consumer]
    if lost:
        lifecycle.drop_moves(writer, lost)


def _drop_orphaned(writer: Writer) -> int:
    held = schema.allocations
    dropped = 0
    for one in _orphaned(writer.conn):
        gone = writer.conn.execute(
            sa.delete(held).where(
                held.c.consumer_uuid == one.consumer,
                held.c.resource_class == one.resource_class,
                ~sa.exists().where(
                    schema.inventories.c.host_id == held.c.host_id,
                    schema.inventories.c.resource_class
                    == held.c.resource_class,
                ),
            )
        )
        dropped += gone.rowcount
    return dropped


def _correct_use(writer: Writer) -> int:
    """Correct the use of inventories, each row under its lock.

    Claims change use and allocations in one transaction, so each row is read
    again once it is locked.
    """
    conn = writer.conn
    offered, held = schema.inventories, schema.allocations
    found = conn.execute(_differing(None)).all()
    corrected = 0
    for row in found:
        mine = (offered.c.host_id == row.host_id) & (
            offered.c.resource_class == row.resource_class
        )
        locked = conn.execute(
            sa.select(offered.c.used, offered.c.reported)
            .where(mine)
            .with_for_update()
        ).one()
        amount = conn.execute(
            sa.select(sa.func.coalesce(sa.func.sum(held.c.amount), 0)).where(
                held.c.host_id == row.host_id,
                held.c.resource_class == row.resource_class,
            )
        ).scalar_one()
        right = locked.reported + int(amount)
        if locked.used != right:
            change = sa.update(offered).where(mine).values(used=right)
            corrected += conn.execute(change).rowcount
            writer.touched.load.append(row.host_id)
    return corrected
