"""Rows of hosts, inventories and traits: added, changed and removed.

Stateless: runs on the thread that owns the writing transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import (
    NESTED_FIELDS,
    STANDARD_FIELDS,
    Host,
    Resource,
)
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer, in_chunks
from scheduler_service.store.reading.loading import MAX_UNIT
from scheduler_service.store.rows import delete, insert

_CHUNK = 500
_encode = msgspec.json.Encoder(order='deterministic').encode


def add(writer: Writer, hosts: Sequence[tuple[int, Host]]) -> None:
    """Add hosts; their use is what their documents state.

    :param hosts: (store id, document) pairs
    """
    conn = writer.conn
    insert(conn, schema.hosts, (_host_row(i, h) for i, h in hosts))
    offered = (row for i, h in hosts for row in _inventory_rows(i, h))
    insert(conn, schema.inventories, offered)
    insert(
        conn,
        schema.traits,
        ({'host_id': i, 'name': t} for i, h in hosts for t in h.traits),
    )
    writer.touched.hosts += [store_id for store_id, _ in hosts]


def change(writer: Writer, hosts: Sequence[tuple[int, Host]]) -> None:
    """Write hosts that changed; what claims hold of them stays allocated.

    :param hosts: (store id, document) pairs; ``used`` without the claims
    """
    conn = writer.conn
    table = schema.hosts
    rows = []
    for store_id, host in hosts:
        row = _host_row(store_id, host)
        row['b_id'] = row.pop('id')
        rows.append(row)
    named: dict[str, Any] = {
        column.name: sa.bindparam(column.name)
        for column in table.c
        if column.name != 'id'
    }
    update = sa.update(table).where(table.c.id == sa.bindparam('b_id'))
    conn.execute(update.values(named), rows)
    _change_inventories(conn, hosts)
    ids = [store_id for store_id, _ in hosts]
    delete(conn, schema.traits.c.host_id, ids)
    insert(
        conn,
        schema.traits,
        ({'host_id': i, 'name': t} for i, h in hosts for t in h.traits),
    )
    writer.touched.hosts += ids


def _change_inventories(
    conn: Connection, hosts: Sequence[tuple[int, Host]]
) -> None:
    """Write inventories.

    Use is changed relative to what is stored: claims may change it at the
    same time.
    """
    table = schema.inventories
    ids = [store_id for store_id, _ in hosts]
    stored: set[tuple[int, str]] = set()
    for part in in_chunks(ids, _CHUNK):
        query = sa.select(table.c.host_id, table.c.resource_class)
        found = conn.execute(query.where(table.c.host_id.in_(part)))
        stored.update((host_id, name) for host_id, name in found)
    rows = [row for i, h in hosts for row in _inventory_rows(i, h)]
    keys = {(row['host_id'], row['resource_class']) for row in rows}
    fresh = [
        row
        for row in rows
        if (row['host_id'], row['resource_class']) not in stored
    ]
    insert(conn, table, fresh)
    if fresh:
        # Claims may hold some from when the host offered it before.
        conn.execute(
            _count_held(),
            [{'b_host_id': row['host_id'], 'b_class': row['resource_class']}
             for row in fresh],
        )  # fmt: skip
    old = [
        {f'b_{key}': value for key, value in row.items()}
        for row in rows
        if (row['host_id'], row['resource_class']) in stored
    ]
    if old:
        conn.execute(_update_inventory(), old)
    for host_id, name in stored - keys:
        conn.execute(
            sa.delete(table).where(
                table.c.host_id == host_id, table.c.resource_class == name
            )
        )


def _count_held() -> Any:
    """Return the statement that adds what claims hold to use."""
    table, held = schema.inventories, schema.allocations
    amount = sa.select(sa.func.coalesce(sa.func.sum(held.c.amount), 0)).where(
        held.c.host_id == table.c.host_id,
        held.c.resource_class == table.c.resource_class,
    )
    return (
        sa.update(table)
        .where(
            table.c.host_id == sa.bindparam('b_host_id'),
            table.c.resource_class == sa.bindparam('b_class'),
        )
        .values(used=table.c.used + amount.scalar_subquery())
    )


def change_load(writer: Writer, hosts: Sequence[tuple[int, Host]]) -> None:
    """Write only what changes often: use, counts, and up or down.

    :param hosts: (store id, document) pairs; ``used`` without the claims
    """
    table = schema.hosts
    moving: dict[str, Any] = {
        name: sa.bindparam(name)
        for name in ('num_io_ops', 'instances_other', 'state')
    }
    ordered = sorted(hosts, key=lambda pair: pair[0])
    update = sa.update(table).where(table.c.id == sa.bindparam('b_id'))
    writer.conn.execute(
        update.values(moving),
        [
            {
                'b_id': store_id,
                'num_io_ops': host.num_io_ops,
                'instances_other': host.num_instances or 0,
                'state': host.state,
            }
            for store_id, host in ordered
        ],
    )
    writer.conn.execute(
        _update_use(),
        [
            {
                'b_host_id': store_id,
                'b_resource_class': row['resource_class'],
                'b_reported': row['reported'],
                'b_available_least': row['available_least'],
            }
            for store_id, host in ordered
            for row in sorted(
                _inventory_rows(store_id, host),
                key=lambda row: str(row['resource_class']),
            )
        ],
    )
    writer.touched.load += [store_id for store_id, _ in ordered]


def _update_use() -> Any:
    table = schema.inventories
    reported: Any = sa.bindparam('b_reported')
    return (
        sa.update(table)
        .where(
            table.c.host_id == sa.bindparam('b_host_id'),
            table.c.resource_class == sa.bindparam('b_resource_class'),
        )
        .ordered_values(
            (table.c.available_least, sa.bindparam('b_available_least')),
            (table.c.used, table.c.used - table.c.reported + reported),
            (table.c.reported, reported),
        )
    )


def _update_inventory() -> Any:
    table = schema.inventories
    plain: dict[str, Any] = {
        name: sa.bindparam(f'b_{name}')
        for name in (
            'total',
            'reserved',
            'min_unit',
            'max_unit',
            'step_size',
            'allocation_ratio',
            'available_least',
        )
    }
    reported: Any = sa.bindparam('b_reported')
    return (
        sa.update(table)
        .where(
            table.c.host_id == sa.bindparam('b_host_id'),
            table.c.resource_class == sa.bindparam('b_resource_class'),
        )
        # ``used`` before ``reported``: MariaDB assigns from left to right.
        .ordered_values(
            *((table.c[name], value) for name, value in plain.items()),
            (table.c.used, table.c.used - table.c.reported + reported),
            (table.c.reported, reported),
        )
    )


def remove(writer: Writer, ids: Sequence[int]) -> None:
    """Remove hosts that hold no claims.

    :raises Conflict: one still holds some; the transaction has to be rolled
        back
    """
    if not ids:
        return
    conn = writer.conn
    # First what claims lock: no more can be made on these hosts.
    delete(conn, schema.inventories.c.host_id, ids)
    for part in in_chunks(ids, _CHUNK):
        held = schema.allocations
        busy = conn.execute(
            sa.select(
                schema.hosts.c.host,
                sa.func.count(sa.distinct(held.c.consumer_uuid)),
            )
            .join(held, held.c.host_id == schema.hosts.c.id)
            .where(schema.hosts.c.id.in_(part))
            .group_by(schema.hosts.c.host)
        ).first()
        if busy is not None:
            raise errors.Conflict(
                f'Host {busy[0]} still holds the claims of {busy[1]} '
                'instances: release them first',
                host=busy[0],
                claims=busy[1],
            )
    _forget_refusals(conn, ids)
    delete(conn, schema.traits.c.host_id, ids)
    delete(conn, schema.hosts.c.id, ids)
    writer.touched.hosts_gone += ids


def _forget_refusals(conn: Connection, ids: Sequence[int]) -> None:
    """Delete which reports of hosts were refused."""
    refused, hosts = schema.refused_reports, schema.hosts
    for part in in_chunks(ids, _CHUNK):
        names = sa.select(hosts.c.host).where(hosts.c.id.in_(part))
        conn.execute(sa.delete(refused).where(refused.c.host.in_(names)))


def _host_row(store_id: int, host: Host) -> dict[str, Any]:
    extra = {
        name: value
        for name in NESTED_FIELDS
        if (value := getattr(host, name)) not in ([], {})
    }
    return {
        'id': store_id,
        'uuid': host.uuid,
        'host': host.host,
        'node': host.hypervisor_hostname,
        'status': host.status,
        'disabled_reason': host.disabled_reason,
        'state': host.state,
        'hypervisor_type': host.hypervisor_type,
        'hypervisor_version': host.hypervisor_version,
        'host_ip': host.host_ip,
        'cell_uuid': host.cell_uuid,
        'num_io_ops': host.num_io_ops,
        'failed_builds': host.failed_builds,
        'instances_other': host.num_instances or 0,
        'document': _encode(extra).decode(),
    }


def _inventory_rows(store_id: int, host: Host) -> Iterable[dict[str, Any]]:
    for name, (total, used, ratio) in STANDARD_FIELDS.items():
        yield _inventory_row(
            store_id,
            name,
            _standard(host, name, getattr(host, total), getattr(host, used)),
            ratio=getattr(host, ratio),
            least=host.disk_available_least if name == 'DISK_GB' else None,
        )
    for name, offer in host.resources.items():
        yield _inventory_row(store_id, name, offer, offer.allocation_ratio)


def _standard(host: Host, name: str, total: int, used: int) -> Resource:
    offer = Resource(total=total, used=used)
    limits = host.units.get(name)
    if limits is not None:
        offer.min_unit = limits.min_unit
        offer.max_unit = limits.max_unit
        offer.step_size = limits.step_size
    return offer


def _inventory_row(
    store_id: int,
    name: str,
    offer: Resource,
    ratio: float | None,
    least: int | None = None,
) -> dict[str, Any]:
    return {
        'host_id': store_id,
        'resource_class': name,
        'total': offer.total,
        'reserved': offer.reserved,
        'min_unit': offer.min_unit,
        'max_unit': offer.max_unit or MAX_UNIT,
        'step_size': offer.step_size,
        'allocation_ratio': ratio,
        'used': offer.used,
        'reported': offer.used,
        'available_least': least,
    }
