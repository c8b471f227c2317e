"""Rows of server groups: added, changed and removed.

Stateless: runs on the thread that owns the writing transaction. Claims add
members in ``claims.batch``, where the policies are checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from scheduler_service.model import ServerGroup
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer, in_chunks
from scheduler_service.store.rows import delete, dialect_of, insert

_CHUNK = 500
_TABLE = schema.server_groups
_MEMBERS = schema.server_group_members
_POLICY = ('policy', 'max_server_per_host')


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
    is_new = _insert_missing(writer.conn, group)
    stored = _lock(writer.conn, [group.uuid])
    differs = _update(writer.conn, stored, [group], _POLICY)
    joined = _join(writer.conn, {group.uuid: group.members})
    changed = is_new or differs or joined
    if changed:
        writer.touched.groups.append(group.uuid)
    return changed


def change(
    writer: Writer, groups: Sequence[tuple[ServerGroup, ServerGroup]]
) -> None:
    """Give groups what is wanted of them, and no other members.

    The rows stay and are locked meanwhile, so that no member can join that
    is not seen here. A member that holds a claim stays: it may have joined
    since the group was read. A group that was removed since stays removed.

    :param groups: (as it was read, what is wanted)
    """
    conn = writer.conn
    by_uuid = sorted(groups, key=lambda pair: pair[1].uuid)
    for part in in_chunks(by_uuid, _CHUNK):
        stored = _lock(conn, [after.uuid for _, after in part])
        pairs = [pair for pair in part if pair[1].uuid in stored]
        columns = ('name', 'project_id', *_POLICY)
        _update(conn, stored, [after for _, after in pairs], columns)
        _leave(conn, {b.uuid: _beside(b, a) for b, a in pairs})
        _join(conn, {b.uuid: _beside(a, b) for b, a in pairs})
        writer.touched.groups += list(stored)


def holding_claims(conn: Connection, instances: Iterable[str]) -> set[str]:
    """Return which of these instances hold a claim, or one to move."""
    table, moves = schema.instances, schema.moves
    found: set[str] = set()
    for part in in_chunks(instances, _CHUNK):
        claimed = sa.select(table.c.uuid).where(
            table.c.uuid.in_(part), table.c.state != 'reported'
        )
        moving = sa.select(moves.c.instance_uuid).where(
            moves.c.instance_uuid.in_(part)
        )
        found.update(conn.execute(claimed).scalars())
        found.update(conn.execute(moving).scalars())
    return found


def lock(conn: Connection, uuids: Iterable[str]) -> None:
    """Lock groups: no instance joins or leaves them in this transaction."""
    for part in in_chunks(sorted(uuids), _CHUNK):
        _lock(conn, part)


def with_instances(
    conn: Connection, uuids: Iterable[str], gone: Collection[str] = ()
) -> set[str]:
    """Return which of these groups have members that are instances.

    Those are on a host, or are claimed for one. Groups also have members of
    which the store knows nothing else: no policy can be kept for them.

    :param gone: instances that do not count, except where they move: a move
        holds a claim of its own
    """
    found: set[str] = set()
    instance, move = schema.instances.c.uuid, schema.moves.c.instance_uuid
    for part in in_chunks(uuids, _CHUNK):
        rows = conn.execute(
            sa.select(_MEMBERS, move.label('moves'))
            .outerjoin(instance.table, instance == _MEMBERS.c.instance_uuid)
            .outerjoin(move.table, move == _MEMBERS.c.instance_uuid)
            .where(
                _MEMBERS.c.group_uuid.in_(part),
                sa.or_(instance.is_not(None), move.is_not(None)),
            )
        )
        found.update(
            row.group_uuid
            for row in rows
            if row.moves or row.instance_uuid not in gone
        )
    return found


def _beside(one: ServerGroup, other: ServerGroup) -> list[str]:
    """Return the members that one has and the other has not."""
    known = set(other.members)
    return [uuid for uuid in one.members if uuid not in known]


def _lock(conn: Connection, uuids: Sequence[str]) -> dict[str, Any]:
    """Lock groups in the order of their uuids, as claims do; return rows."""
    found = conn.execute(
        sa.select(_TABLE)
        .where(_TABLE.c.uuid.in_(uuids))
        .order_by(_TABLE.c.uuid)
        .with_for_update()
    )
    return {row.uuid: row for row in found}


def _update(
    conn: Connection,
    stored: Mapping[str, Any],
    groups: Sequence[ServerGroup],
    columns: Sequence[str],
) -> bool:
    """Write these columns of groups where they differ; return if any do."""
    differ = [
        row
        for row in map(_row, groups)
        if any(getattr(stored[row['uuid']], c) != row[c] for c in columns)
    ]
    if differ:
        conn.execute(
            sa.update(_TABLE)
            .where(_TABLE.c.uuid == sa.bindparam('b_uuid'))
            .values({name: sa.bindparam(f'b_{name}') for name in columns}),
            [{f'b_{name}': row[name] for name in ('uuid', *columns)}
             for row in differ],
        )  # fmt: skip
    return bool(differ)


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


def _join(conn: Connection, joining: Mapping[str, Sequence[str]]) -> bool:
    """Add the members that stored groups do not have; return if any.

    :param joining: group -> instances
    """
    wanted = {uuid: members for uuid, members in joining.items() if members}
    if not wanted:
        return False
    present = defaultdict(set)
    for row in conn.execute(
        sa.select(_MEMBERS).where(_MEMBERS.c.group_uuid.in_(list(wanted)))
    ):
        present[row.group_uuid].add(row.instance_uuid)
    new = [
        {'group_uuid': group, 'instance_uuid': uuid}
        for group, members in wanted.items()
        for uuid in dict.fromkeys(members)
        if uuid not in present[group]
    ]
    insert(conn, _MEMBERS, new)
    return bool(new)


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

    The groups' rows go first: this waits for claims that join them, so that
    no membership is left.
    """
    gone = delete(writer.conn, schema.server_groups.c.uuid, uuids)
    delete(writer.conn, schema.server_group_members.c.group_uuid, uuids)
    writer.touched.groups += uuids
    return gone
