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
from scheduler_service.store.rows import delete


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
    zone = schema.zones.c
    query = sa.select(zone.id, zone.pool_id, zone.project_id)
    rows = conn.execute(query.where(zone.id.in_(zone_ids)))
    return {uuid: (pool, project) for uuid, pool, project in rows}


def listing(conn: Connection) -> list[ZoneRow]:
    """Return all zones by name."""
    zone = schema.zones.c
    query = sa.select(*(zone[name] for name in ZoneRow._fields))
    rows = conn.execute(query.order_by(zone.name, zone.id))
    return [ZoneRow(*row) for row in rows]


def count(conn: Connection) -> int:
    """Return how many zones have a pool."""
    query = sa.select(sa.func.count()).select_from(schema.zones)
    return int(conn.execute(query).scalar_one())


def add(writer: Writer, zones: Sequence[ZoneRow]) -> None:
    """Add zones with their pools.

    :raises DBDuplicateEntry: a zone has a pool already; no zone is added
    """
    writer.conn.execute(
        schema.zones.insert(), list(map(ZoneRow._asdict, zones))
    )


def remove(writer: Writer, zone_ids: Sequence[str]) -> int:
    """Remove zones; return how many there were."""
    return delete(writer.conn, schema.zones.c.id, zone_ids)
