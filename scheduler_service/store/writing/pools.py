"""Rows of DNS pools: added, changed and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.model import Pool, documents
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import delete, insert


def add(writer: Writer, pools: Sequence[Pool]) -> None:
    """Add pools, or replace those of the same ids."""
    remove(writer, [pool.id for pool in pools])
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


def remove(writer: Writer, ids: Sequence[str]) -> int:
    """Remove pools; zones keep the id of their pool.

    :return: how many pools there were
    """
    delete(writer.conn, schema.pool_attributes.c.pool_id, ids)
    writer.touched.pools = True
    return delete(writer.conn, schema.pools.c.id, ids)


def create(writer: Writer, pool: Pool) -> None:
    """Add a pool.

    :raises Conflict: the id or the name is taken
    """
    for stored in loading.pools(writer.conn).values():
        if pool.id == stored.id or pool.name == stored.name:
            raise errors.Conflict(
                f'Pool {stored.name} ({stored.id}) already exists'
            )
    add(writer, [pool])


def _find(writer: Writer, named: str) -> Pool:
    """Return a pool by its id or name.

    :raises PoolNotFound: the pool does not exist
    """
    for pool in loading.pools(writer.conn).values():
        if named in (pool.id, pool.name):
            return pool
    raise errors.PoolNotFound(f'There is no pool {named}', pool=named)


def set_attributes(
    writer: Writer, named: str, pairs: Mapping[str, str | None]
) -> Pool:
    """Set attributes of a pool, or remove those that are None.

    :raises PoolNotFound: the pool does not exist
    :raises InvalidInventory: a key or value is too long
    """
    old = _find(writer, named)
    merged: dict[str, Any] = {**old.attributes, **pairs}
    kept = {key: value for key, value in merged.items() if value is not None}
    changed = documents.check_entity(
        msgspec.structs.replace(old, attributes=kept)
    )
    add(writer, [changed])
    return changed


def delete_named(writer: Writer, named: str) -> Pool:
    """Remove a pool that has no zones.

    :raises PoolNotFound: the pool does not exist
    :raises Conflict: zones are still in it
    """
    pool = _find(writer, named)
    table = schema.zones
    inside = writer.conn.execute(
        sa.select(sa.func.count()).where(table.c.pool_id == pool.id)
    ).scalar_one()
    if inside:
        raise errors.Conflict(
            f'{inside} zones are still in pool {pool.name}', zones=inside
        )
    remove(writer, [pool.id])
    return pool
