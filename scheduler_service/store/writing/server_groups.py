"""Rows of server groups: added and removed.

Stateless: runs on the thread that owns the writing transaction. Claims add
members in ``claims.group_policies``, where the policies are checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.model import ServerGroup
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.rows import delete, insert


def add(writer: Writer, groups: Sequence[ServerGroup]) -> None:
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


def remove(writer: Writer, uuids: Sequence[str]) -> int:
    """Remove server groups, not their members; return how many there were."""
    delete(writer.conn, schema.server_group_members.c.group_uuid, uuids)
    writer.touched.groups += uuids
    return delete(writer.conn, schema.server_groups.c.uuid, uuids)
