"""Rows of instances that hosts report: added, changed and removed.

Stateless: runs on the thread that owns the writing transaction. Instances
that are claimed are written in ``claims``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from scheduler_service.model import Instance
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer, in_chunks
from scheduler_service.store.rows import delete, document, insert

_CHUNK = 500


def add(writer: Writer, instances: Sequence[Instance]) -> None:
    """Add instances that hosts report."""
    rows = (
        {
            **_instance_row(one),
            'uuid': one.uuid,
            'state': 'reported',
            'request_id': None,
            'placement': None,
        }
        for one in instances
    )
    insert(writer.conn, schema.instances, rows)
    writer.touched.instances += [one.uuid for one in instances]
    _touch_load(writer, {one.host for one in instances})


def change(writer: Writer, instances: Sequence[Instance]) -> None:
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


def remove(writer: Writer, uuids: Sequence[str]) -> None:
    """Remove instances that hosts no longer report, unless they are claimed.

    They may have been claimed since the caller looked.
    """
    locked = lifecycle.lock(writer.conn, uuids)
    uuids = [uuid for uuid, row in locked.items() if row.state == 'reported']
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
    """Record that the instance counts of service hosts changed."""
    table = schema.hosts
    for part in in_chunks(hosts, _CHUNK):
        ids = sa.select(table.c.id).where(table.c.host.in_(part))
        writer.touched.load += list(writer.conn.execute(ids).scalars())


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
