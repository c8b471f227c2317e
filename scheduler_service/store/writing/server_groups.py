"""Rows of server groups: added, changed and removed.

Claims add members in ``claims.claim_steps``, and check the policies there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import ServerGroup
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_sql
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import (
    delete,
    insert,
    insert_missing,
    select_in,
    update,
)

_TABLE = schema.server_groups
_MEMBERS = schema.server_group_members
_POLICY = ('policy', 'max_server_per_host')


def add(writer: Writer, groups: Sequence[ServerGroup]) -> None:
    """Add server groups with their members."""
    insert(writer.conn, _TABLE, (_row(g) for g in groups))
    insert(
        writer.conn,
        _MEMBERS,
        (
            {'group_uuid': g.uuid, 'instance_uuid': member}
            for g in groups
            for member in dict.fromkeys(g.members)
        ),
    )
    writer.touched.groups += [g.uuid for g in groups]


def put(writer: Writer, group: ServerGroup) -> bool:
    """Add a server group, or set its policy and add these members.

    Its other members stay: they may have joined with a claim since the sender
    read the group.

    :return: whether anything changed
    """
    is_new = insert_missing(writer.conn, _TABLE, _row(group))
    stored = lock(writer.conn, [group.uuid])
    differs = _update(writer.conn, stored, [group], _POLICY)
    joined = _join(writer.conn, ((group.uuid, uuid) for uuid in group.members))
    changed = is_new or differs or joined
    if changed:
        writer.touched.groups.append(group.uuid)
    return changed


def change(
    writer: Writer, groups: Sequence[tuple[ServerGroup, ServerGroup]]
) -> None:
    """Change groups, and replace their members.

    The rows stay and are locked meanwhile, so that no member can join
    unnoticed. A member that holds a claim stays: it may have joined since the
    group was read. A group that was removed since stays removed.

    :param groups: (group as read, new group)
    """
    conn = writer.conn
    stored = lock(conn, [after.uuid for _, after in groups])
    pairs = [pair for pair in groups if pair[1].uuid in stored]
    columns = ('name', 'project_id', *_POLICY)
    _update(conn, stored, [after for _, after in pairs], columns)
    _leave(conn, {b.uuid: _members_only_in(b, a) for b, a in pairs})
    _join(
        conn,
        ((b.uuid, one) for b, a in pairs for one in _members_only_in(a, b)),
    )
    writer.touched.groups += list(stored)


def holding_claims(conn: Connection, instances: Iterable[str]) -> set[str]:
    """Return the instances that hold a claim or the claim of a move."""
    uuids = list(instances)
    instance, move = schema.instances.c, schema.moves.c.instance_uuid
    claimed = sa.select(instance.uuid).where(instance.state != 'reported')
    rows = [
        *select_in(conn, claimed, instance.uuid, uuids),
        *select_in(conn, sa.select(move), move, uuids),
    ]
    return {uuid for (uuid,) in rows}


def lock(conn: Connection, uuids: Iterable[str]) -> dict[str, Any]:
    """Lock groups, so that no instance joins or leaves them meanwhile.

    As claims do, in the order of their uuids.

    :return: the rows of those that are stored, by uuid
    """
    query = sa.select(_TABLE).order_by(_TABLE.c.uuid).with_for_update()
    rows = select_in(conn, query, _TABLE.c.uuid, sorted(uuids))
    return {row.uuid: row for row in rows}


def with_instances(
    conn: Connection, uuids: Iterable[str], gone: Collection[str] = ()
) -> set[str]:
    """Return the groups that have stored instances as members.

    A stored instance is on a host, or claimed for one. Groups may also have
    members that are not stored, for which no policy can be enforced.

    :param gone: instances that do not count, unless they move: a move holds a
        claim of its own
    """
    instance, move = schema.instances.c.uuid, schema.moves.c.instance_uuid
    query = (
        sa.select(_MEMBERS, move.label('moves'))
        .outerjoin(instance.table, instance == _MEMBERS.c.instance_uuid)
        .outerjoin(move.table, move == _MEMBERS.c.instance_uuid)
        .where(sa.or_(instance.is_not(None), move.is_not(None)))
    )
    return {
        row.group_uuid
        for row in select_in(conn, query, _MEMBERS.c.group_uuid, uuids)
        if row.moves or row.instance_uuid not in gone
    }


def _members_only_in(group: ServerGroup, compared: ServerGroup) -> list[str]:
    members = {*compared.members}
    return [uuid for uuid in group.members if uuid not in members]


def _update(
    conn: Connection,
    stored: Mapping[str, Any],
    groups: Sequence[ServerGroup],
    columns: Sequence[str],
) -> bool:
    """Write columns of groups that differ; return whether any does."""
    differ = [
        row
        for row in map(_row, groups)
        if any(getattr(stored[row['uuid']], c) != row[c] for c in columns)
    ]
    names = 'uuid', *columns
    changed = [{name: row[name] for name in names} for row in differ]
    update(conn, _TABLE, 'uuid', changed)
    return bool(differ)


def _row(group: ServerGroup) -> dict[str, Any]:
    return {
        'uuid': group.uuid,
        'name': group.name,
        'project_id': group.project_id,
        'policy': group.policy,
        'max_server_per_host': group.rules.get('max_server_per_host'),
    }


def _join(conn: Connection, joining: Iterable[tuple[str, str]]) -> bool:
    """Add members that groups lack; return whether there were any.

    :param joining: (group, instance) pairs
    """
    pairs = list(joining)
    return bool(pairs) and claim_sql.join_groups(conn, pairs) > 0


def _leave(conn: Connection, leaving: Mapping[str, Sequence[str]]) -> None:
    """Remove members from groups, except those that hold claims.

    :param leaving: group -> instances
    """
    held = holding_claims(
        conn, {uuid for members in leaving.values() for uuid in members}
    )
    gone = [
        {'b_group': group, 'b_instance': uuid}
        for group, members in leaving.items()
        for uuid in members
        if uuid not in held
    ]
    if gone:
        conn.execute(
            sa.delete(_MEMBERS).where(
                _MEMBERS.c.group_uuid == sa.bindparam('b_group'),
                _MEMBERS.c.instance_uuid == sa.bindparam('b_instance'),
            ),
            gone,
        )


def remove(writer: Writer, uuids: Sequence[str]) -> int:
    """Remove server groups, not their members; return how many there were.

    The groups' rows go first: their deletion waits for claims that join them,
    so that no membership is left.
    """
    deleted = delete(writer.conn, _TABLE.c.uuid, uuids)
    delete(writer.conn, _MEMBERS.c.group_uuid, uuids)
    writer.touched.groups += uuids
    return deleted


def create(writer: Writer, group: ServerGroup) -> None:
    """Add a server group.

    :raises Conflict: the uuid is taken
    """
    if loading.groups(writer.conn, [group.uuid]):
        raise errors.Conflict(f'Server group {group.uuid} already exists')
    add(writer, [group])


def delete_named(writer: Writer, uuid: str) -> None:
    """Remove a server group.

    :raises ServerGroupNotFound: the group does not exist
    """
    if not remove(writer, [uuid]):
        raise errors.ServerGroupNotFound(
            f'There is no server group {uuid}', uuid=uuid
        )
