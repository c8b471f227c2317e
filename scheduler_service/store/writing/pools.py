"""Rows of DNS pools: added and removed.

Stateless: runs on the thread that owns the writing transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.model import Pool
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.rows import delete, insert


def add(writer: Writer, pools: Sequence[Pool]) -> None:
    """Add pools with their attributes."""
    insert(
        writer.conn,
        schema.pools,
        (
            {'id': p.id, 'name': p.name, 'description': p.description}
            for p in pools
        ),
    )
    insert(
        writer.conn,
        schema.pool_attributes,
        (
            {'pool_id': p.id, 'key': key, 'value': value}
            for p in pools
            for key, value in p.attributes.items()
        ),
    )
    writer.touched.pools = True


def remove(writer: Writer, ids: Sequence[str]) -> int:
    """Remove pools; zones keep the id of their pool.

    :return: how many pools there were
    """
    delete(writer.conn, schema.pool_attributes.c.pool_id, ids)
    writer.touched.pools = True
    return delete(writer.conn, schema.pools.c.id, ids)
