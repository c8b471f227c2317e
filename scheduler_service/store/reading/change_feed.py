"""The change feed: what was written since a revision, applied to a snapshot.

Stateless: any thread may call it with a connection of its own. Daemons learn
of each other's writes in this way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import (
    with_aggregates,
    with_hosts,
)
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.columns.table import HostTable
from scheduler_service.model import ServerGroup
from scheduler_service.store import schema
from scheduler_service.store.connection import ChangeRecord
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.snapshot_loading import load_snapshot

_DECODER = msgspec.json.Decoder(ChangeRecord)
_MAX_CHANGES = 10_000


def since(
    conn: Connection, revision: int, limit: int = _MAX_CHANGES
) -> list[tuple[int, ChangeRecord]]:
    """Return the changes after *revision*, in order.

    :return: (revision, what it changed) pairs
    """
    table = schema.changes
    query = (
        sa.select(table.c.revision, table.c.touched)
        .where(table.c.revision > revision)
        .order_by(table.c.revision)
        .limit(limit)
    )
    return [
        (found, _DECODER.decode(touched))
        for found, touched in conn.execute(query)
    ]


def refresh(
    conn: Connection, snapshot: Snapshot, own: Collection[int] = ()
) -> Snapshot:
    """Return the snapshot brought up to date.

    :param own: revisions that the snapshot contains already
    """
    found = since(conn, snapshot.revision)
    if not found:
        return snapshot
    gap = found[0][0] != snapshot.revision + 1
    touched = _merge(one for number, one in found if number not in own)
    if gap or touched.everything or len(found) >= _MAX_CHANGES:
        # Older changes were pruned, or there are too many to apply them.
        return load_snapshot(conn)
    table = _apply(conn, snapshot.hosts, touched)
    pools = loading.pools(conn) if touched.pools else snapshot.pools
    return Snapshot(table, pools, found[-1][0])


def prune(conn: Connection, before: float) -> int:
    """Delete changes made before a time; return how many.

    A reader that needs a deleted change loads everything again.

    :param before: seconds since the epoch
    """
    table = schema.changes
    last = sa.select(sa.func.max(table.c.revision)).scalar_subquery()
    newest = conn.execute(sa.select(last)).scalar()
    gone = conn.execute(
        sa.delete(table).where(
            table.c.created_at < before, table.c.revision < newest
        )
    )
    return gone.rowcount


def _merge(changes: Iterable[ChangeRecord]) -> ChangeRecord:
    """Return one record of all that several changed."""
    whole = ChangeRecord()
    parts: dict[str, set[Any]] = {
        name: set() for name in ChangeRecord.__struct_fields__
    }
    for one in changes:
        for name in ChangeRecord.__struct_fields__:
            value = getattr(one, name)
            if isinstance(value, bool):
                setattr(whole, name, getattr(whole, name) or value)
            else:
                parts[name].update(value)
    for name, values in parts.items():
        if values:
            setattr(whole, name, sorted(values))
    return whole


def _apply(
    conn: Connection, table: HostTable, touched: ChangeRecord
) -> HostTable:
    """Return the table with everything that was touched read again."""
    if touched.instances or touched.instances_gone:
        now = loading.instances(conn, touched.instances)
        there = {one.uuid for one in now}
        for one in now:
            table.put_instance(one.uuid, one)
        for uuid in {*touched.instances, *touched.instances_gone} - there:
            table.put_instance(uuid, None)
    if touched.groups:
        table = dataclasses.replace(
            table, groups=_groups(conn, table, touched.groups)
        )
    if touched.hosts or touched.hosts_gone:
        wanted = {*touched.hosts, *touched.hosts_gone}
        hosts = loading.hosts(conn, sorted(wanted))
        table = with_hosts(table, list(hosts.items()), wanted - hosts.keys())
    if touched.aggregates:
        table = with_aggregates(table, loading.aggregates(conn))
    load = sorted({*touched.load} - {*touched.hosts})
    if load:
        _set_loads(conn, table, load)
    return table


def _groups(
    conn: Connection, table: HostTable, uuids: list[str]
) -> dict[str, ServerGroup]:
    groups = {
        uuid: group
        for uuid, group in table.groups.items()
        if uuid not in set(uuids)
    }
    groups.update(loading.groups(conn, uuids))
    return groups


def _set_loads(conn: Connection, table: HostTable, ids: list[int]) -> None:
    used: dict[str, dict[int, int]] = {}
    numbers: dict[str, dict[int, float]] = {
        'num_instances': {},
        'num_io_ops': {},
        'disk_available_least': {},
        'up': {},
    }
    for store_id, load in loading.loads(conn, ids).items():
        row = table.row_of_id(store_id)
        if row is None:
            continue
        for name, amount in load.used.items():
            if name in table.resources:
                used.setdefault(name, {})[row] = amount
        least = load.available_least
        numbers['num_instances'][row] = load.num_instances
        numbers['num_io_ops'][row] = load.num_io_ops
        numbers['up'][row] = load.up
        numbers['disk_available_least'][row] = (
            np.nan if least is None else least
        )
    table.set_load(used, numbers)
