"""Rows of instances, pools, aggregates and groups: add, change, drop.

Small verbs on a writing transaction; each says what it touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from scheduler_service.model import (
    Aggregate,
    Instance,
    Pool,
    ServerGroup,
)
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer, in_chunks
from scheduler_service.store.rows import delete, document, insert

_CHUNK = 500


class Verbs(NamedTuple):
    """How one kind of small thing is added and removed."""

    add: Callable[[Writer, Sequence[Any]], None]
    remove: Callable[[Writer, Sequence[Any]], int]


def add_instances(
    writer: Writer, instances: Sequence[Instance], now: float
) -> None:
    """Add instances that hosts report."""
    rows = (
        {
            **_instance_row(one),
            'uuid': one.uuid,
            'state': 'reported',
            'request_id': None,
            'placement': None,
            'created_at': now,
        }
        for one in instances
    )
    insert(writer.conn, schema.instances, rows)
    writer.touched.instances += [one.uuid for one in instances]
    _touch_load(writer, {one.host for one in instances})


def change_instances(writer: Writer, instances: Sequence[Instance]) -> None:
    """Write instances that differ."""
    if not instances:
        return
    table = schema.instances
    rows = [{**_instance_row(one), 'b_uuid': one.uuid} for one in instances]
    named: dict[str, Any] = {
        name: sa.bindparam(name)
        for name in ('host', 'node', 'project_id', 'document')
    }
    update = sa.update(table).where(table.c.uuid == sa.bindparam('b_uuid'))
    hosts = {one.host for one in instances}
    hosts |= _hosts_of(writer, [one.uuid for one in instances])
    writer.conn.execute(update.values(named), rows)
    writer.touched.instances += [one.uuid for one in instances]
    _touch_load(writer, hosts)


def remove_instances(writer: Writer, uuids: Sequence[str]) -> None:
    """Remove instances that hosts no longer report."""
    if not uuids:
        return
    hosts = _hosts_of(writer, uuids)
    delete(writer.conn, schema.instances.c.uuid, uuids)
    writer.touched.instances_gone += uuids
    _touch_load(writer, hosts)


def _hosts_of(writer: Writer, uuids: Sequence[str]) -> set[str]:
    """Return the service hosts that instances are on."""
    table = schema.instances
    hosts: set[str] = set()
    for part in in_chunks(uuids, _CHUNK):
        found = sa.select(table.c.host).where(table.c.uuid.in_(part))
        hosts.update(writer.conn.execute(found).scalars())
    return hosts


def _touch_load(writer: Writer, hosts: Iterable[str]) -> None:
    """Say that the instance counts of service hosts moved."""
    table = schema.hosts
    for part in in_chunks(hosts, _CHUNK):
        ids = sa.select(table.c.id).where(table.c.host.in_(part))
        writer.touched.load += list(writer.conn.execute(ids).scalars())


def add_pools(writer: Writer, pools: Sequence[Pool]) -> None:
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


def remove_pools(writer: Writer, ids: Sequence[str]) -> int:
    """Remove pools; zones keep the id of the pool they got."""
    delete(writer.conn, schema.pool_attributes.c.pool_id, ids)
    writer.touched.pools = True
    return delete(writer.conn, schema.pools.c.id, ids)


def add_aggregates(writer: Writer, aggregates: Sequence[Aggregate]) -> None:
    """Add aggregates with hosts and metadata."""
    insert(
        writer.conn,
        schema.aggregates,
        ({'id': a.id, 'uuid': a.uuid, 'name': a.name} for a in aggregates),
    )
    insert(
        writer.conn,
        schema.aggregate_hosts,
        (
            {'aggregate_id': a.id, 'host': host}
            for a in aggregates
            for host in dict.fromkeys(a.hosts)
        ),
    )
    insert(
        writer.conn,
        schema.aggregate_metadata,
        (
            {'aggregate_id': a.id, 'key': key, 'value': value}
            for a in aggregates
            for key, value in a.metadata.items()
        ),
    )
    writer.touched.aggregates = True


def remove_aggregates(writer: Writer, ids: Sequence[int]) -> int:
    """Remove aggregates; their hosts stay."""
    delete(writer.conn, schema.aggregate_metadata.c.aggregate_id, ids)
    delete(writer.conn, schema.aggregate_hosts.c.aggregate_id, ids)
    writer.touched.aggregates = True
    return delete(writer.conn, schema.aggregates.c.id, ids)


def add_groups(writer: Writer, groups: Sequence[ServerGroup]) -> None:
    """Add server groups with their members."""
    insert(
        writer.conn,
        schema.server_groups,
        (
            {
                'uuid': g.uuid,
                'name': g.name,
                'project_id': g.project_id,
                'policy': g.policy,
                'max_server_per_host': g.rules.get('max_server_per_host'),
            }
            for g in groups
        ),
    )
    insert(
        writer.conn,
        schema.server_group_members,
        (
            {'group_uuid': g.uuid, 'instance_uuid': member}
            for g in groups
            for member in dict.fromkeys(g.members)
        ),
    )
    writer.touched.groups += [g.uuid for g in groups]


def remove_groups(writer: Writer, uuids: Sequence[str]) -> int:
    """Remove server groups; their members stay where they are."""
    delete(writer.conn, schema.server_group_members.c.group_uuid, uuids)
    writer.touched.groups += uuids
    return delete(writer.conn, schema.server_groups.c.uuid, uuids)


VERBS: Mapping[str, Verbs] = {
    'pools': Verbs(add_pools, remove_pools),
    'aggregates': Verbs(add_aggregates, remove_aggregates),
    'server_groups': Verbs(add_groups, remove_groups),
}


def _instance_row(one: Instance) -> dict[str, Any]:
    extra = {
        'image_id': one.image_id,
        'availability_zone': one.availability_zone,
        'task_state': one.task_state,
        'image_meta': one.image_meta,
        'flavor': one.flavor,
    }
    return {
        'host': one.host,
        'node': one.hypervisor_hostname,
        'project_id': one.project_id,
        'document': document(extra),
    }
