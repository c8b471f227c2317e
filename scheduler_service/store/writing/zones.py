"""Rows of DNS zones: the pool that each zone was scheduled to.

A zone's row is its claim: of two daemons that add it, the second fails at the
key. Adding a zone locks nothing, so its pool may be removed meanwhile; the
zone then keeps the id of the removed pool, as all zones of that pool do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.connection import Writer


class ZoneRow(NamedTuple):
    """A zone and its pool."""

    id: str
    name: str
    pool_id: str
    project_id: str | None
    request_id: str | None


def pools_of(
    conn: Connection, zone_ids: Sequence[str]
) -> dict[str, tuple[str, str | None]]:
    """Return (pool id, project id) of each zone that has a pool."""
    table = schema.zones
    query = sa.select(table.c.id, table.c.pool_id, table.c.project_id).where(
        table.c.id.in_(zone_ids)
    )
    return {
        row.id: (row.pool_id, row.project_id) for row in conn.execute(query)
    }


def listing(conn: Connection) -> list[ZoneRow]:
    """Return all zones by name."""
    table = schema.zones
    query = sa.select(
        table.c.id,
        table.c.name,
        table.c.pool_id,
        table.c.project_id,
        table.c.request_id,
    ).order_by(table.c.name, table.c.id)
    return [ZoneRow(*row) for row in conn.execute(query)]


def add(writer: Writer, zones: Sequence[ZoneRow]) -> None:
    """Add zones with their pools.

    :raises DBDuplicateEntry: a zone has a pool already; no zone is added
    """
    writer.conn.execute(
        schema.zones.insert(), list(map(ZoneRow._asdict, zones))
    )


def remove(writer: Writer, zone_ids: Sequence[str]) -> int:
    """Remove zones; return how many there were."""
    table = schema.zones
    deleted = writer.conn.execute(
        sa.delete(table).where(table.c.id.in_(zone_ids))
    )
    return deleted.rowcount
