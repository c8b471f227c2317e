"""Rows of server groups: added and removed.

Stateless: runs on the thread that owns the writing transaction. Claims add
members in ``claims.group_policies``, where the policies are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from scheduler_service.model import ServerGroup
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.rows import delete, dialect_of, insert


def add(writer: Writer, groups: Sequence[ServerGroup]) -> None:
    """Add server groups with their members."""
    insert(
        writer.conn,
        schema.server_groups,
        (_row(g) for g in groups),
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


def put(writer: Writer, group: ServerGroup) -> bool:
    """Add a server group, or give it this policy and these members as well.

    Members that it has beside them stay: they may have joined with a claim
    since whoever sends this looked.

    :return: whether anything changed
    """
    conn, table = writer.conn, schema.server_groups
    is_new = _insert_missing(conn, group)
    stored = conn.execute(
        sa.select(table).where(table.c.uuid == group.uuid).with_for_update()
    ).one()
    values = {
        'policy': group.policy,
        'max_server_per_host': group.rules.get('max_server_per_host'),
    }
    differs = any(getattr(stored, key) != one for key, one in values.items())
    if differs:
        conn.execute(
            sa.update(table).where(table.c.uuid == group.uuid).values(values)
        )
    changed = _join(writer, group) or differs or is_new
    if changed:
        writer.touched.groups.append(group.uuid)
    return changed


def _insert_missing(conn: Connection, group: ServerGroup) -> bool:
    """Add the row of a group that is not stored; return whether it was added.

    Another daemon may be about to add it: then this one waits.
    """
    table = schema.server_groups
    dialect = dialect_of(conn)
    statement: Any
    if dialect == 'mysql':
        statement = sa.insert(table).prefix_with('IGNORE')
    else:
        of = postgresql if dialect == 'postgresql' else sqlite
        statement = of.insert(table).on_conflict_do_nothing()
    found = conn.execute(statement.values(_row(group)))
    return found.rowcount > 0


def _row(group: ServerGroup) -> dict[str, Any]:
    return {
        'uuid': group.uuid,
        'name': group.name,
        'project_id': group.project_id,
        'policy': group.policy,
        'max_server_per_host': group.rules.get('max_server_per_host'),
    }


def _join(writer: Writer, group: ServerGroup) -> bool:
    """Add the members that a stored group does not have; return if any."""
    table = schema.server_group_members
    present = set(
        writer.conn.execute(
            sa.select(table.c.instance_uuid).where(
                table.c.group_uuid == group.uuid
            )
        ).scalars()
    )
    new = [
        uuid for uuid in dict.fromkeys(group.members) if uuid not in present
    ]
    insert(
        writer.conn,
        table,
        [{'group_uuid': group.uuid, 'instance_uuid': uuid} for uuid in new],
    )
    return bool(new)


def remove(writer: Writer, uuids: Sequence[str]) -> int:
    """Remove server groups, not their members; return how many there were.

    The groups' rows go first: this waits for claims that join them, so that
    no membership is left.
    """
    gone = delete(writer.conn, schema.server_groups.c.uuid, uuids)
    delete(writer.conn, schema.server_group_members.c.group_uuid, uuids)
    writer.touched.groups += uuids
    return gone
