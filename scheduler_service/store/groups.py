"""Server groups under claims: their policies hold under their rows' locks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.rows import insert

_ANTI = 'anti-affinity'


def join(
    writer: Writer,
    joining: Mapping[str, tuple[str, str]],
    policies: Collection[str],
) -> bool:
    """Put instances into their groups, unless that breaks a strict policy.

    Groups are locked in the order of their uuids, so of two daemons that
    place members of one group the second sees what the first did.

    :param joining: instance -> (group, service host); a group that is not
        there has no members
    :param policies: that are to hold
    :return: false where one would be broken; nothing is written then
    """
    conn = writer.conn
    table = schema.server_groups
    named = sorted({group for group, _ in joining.values()})
    heads = conn.execute(
        sa.select(table.c.uuid, table.c.policy, table.c.max_server_per_host)
        .where(table.c.uuid.in_(named))
        .order_by(table.c.uuid)
        .with_for_update()
    ).all()
    members = _members(conn, [head.uuid for head in heads])
    new = []
    for head in heads:
        there = members[head.uuid]
        places = {uuid: set(hosts) for uuid, hosts in there.items()}
        for uuid, (group, host) in joining.items():
            if group == head.uuid:
                places[uuid] = _with(head, places.get(uuid, set()), host)
                if uuid not in there:
                    new.append({'group_uuid': group, 'instance_uuid': uuid})
        if head.policy in policies and not _holds(head, places):
            return False
    insert(conn, schema.server_group_members, new)
    writer.touched.groups += sorted({one['group_uuid'] for one in new})
    return True


def leave(writer: Writer, instances: Sequence[str]) -> None:
    """Take instances out of the groups that they are in."""
    table = schema.server_group_members
    mine = table.c.instance_uuid.in_(instances)
    found = writer.conn.execute(sa.select(table.c.group_uuid).where(mine))
    groups = sorted(set(found.scalars()))
    if groups:
        writer.conn.execute(sa.delete(table).where(mine))
        writer.touched.groups += groups


def _members(
    conn: Connection, groups: Sequence[str]
) -> dict[str, dict[str, set[str]]]:
    """Return instance -> its hosts for each group.

    None for one that is not placed, two for one that moves.
    """
    members, instances = schema.server_group_members, schema.instances
    moves = schema.moves
    rows = conn.execute(
        sa.select(
            members.c.group_uuid,
            members.c.instance_uuid,
            instances.c.host,
            moves.c.host,
        )
        .outerjoin(instances, instances.c.uuid == members.c.instance_uuid)
        .outerjoin(moves, moves.c.instance_uuid == members.c.instance_uuid)
        .where(members.c.group_uuid.in_(groups))
    )
    found: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for group, uuid, *hosts in rows:
        found[group][uuid] = {host for host in hosts if host}
    return found


def _with(head: Any, hosts: set[str], host: str) -> set[str]:
    """Return where an instance counts once it joins on a host.

    One that moves keeps others away from both its hosts, but others are
    kept together with where it will be.
    """
    return {*hosts, host} if head.policy == _ANTI else {host}


def _holds(head: Any, places: Mapping[str, set[str]]) -> bool:
    """Whether a group's policy holds with its members on these hosts."""
    counts = Counter(host for hosts in places.values() for host in hosts)
    if head.policy == _ANTI:
        return max(counts.values(), default=0) <= (
            head.max_server_per_host or 1
        )
    return len(counts) <= 1
