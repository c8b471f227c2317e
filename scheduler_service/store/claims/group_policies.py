"""Server groups in claims: policies are checked under the groups' row locks.

Stateless: runs on the thread that owns the writing transaction. Places of
members are read once the groups are locked, and whoever adds a member locks
them first, so no member is missed. Members leave, move and are released
without that lock: a claim may still see one that has gone, and is then lost
where it could have been made, never the reverse.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.rows import among, insert

_ANTI_AFFINITY = 'anti-affinity'
_MEMBERS = schema.server_group_members
_MINE = among(_MEMBERS.c.instance_uuid)
_GROUPS_OF = sa.select(_MEMBERS.c.group_uuid).where(_MINE)
_REMOVE = sa.delete(_MEMBERS).where(_MINE)


def join(
    writer: Writer,
    joining: Mapping[str, tuple[str, str]],
    policies: Collection[str],
    owners: Mapping[str, str | None],
) -> bool:
    """Add instances to their groups, unless that breaks a strict policy.

    Groups are locked in the order of their uuids. Of two daemons that place
    members of one group, the second therefore sees what the first wrote.

    :param joining: instance -> (group, service host); a group that does not
        exist has no policy and gets no members
    :param policies: the policies that are strict
    :param owners: group -> its project when the hosts were read, empty where
        it had none; None: there was no such group, so nobody checked it
    :return: false where a strict policy would be broken, or a group has
        another project by now; then nothing is written
    """
    conn = writer.conn
    table = schema.server_groups
    wanted = sorted({group for group, _ in joining.values()})
    groups = conn.execute(
        sa.select(
            table.c.uuid,
            table.c.policy,
            table.c.max_server_per_host,
            table.c.project_id,
        )
        .where(table.c.uuid.in_(wanted))
        .order_by(table.c.uuid)
        .with_for_update()
    ).all()
    if any(owners[one.uuid] != (one.project_id or '') for one in groups):
        return False
    members = _members(conn, [group.uuid for group in groups])
    new = []
    for group in groups:
        present = members[group.uuid]
        places = {uuid: set(hosts) for uuid, hosts in present.items()}
        for uuid, (joined, host) in joining.items():
            if joined == group.uuid:
                places[uuid] = _with(group, places.get(uuid, set()), host)
                if uuid not in present:
                    new.append({'group_uuid': joined, 'instance_uuid': uuid})
        if group.policy in policies and not _holds(group, places):
            return False
    insert(conn, schema.server_group_members, new)
    writer.touched.groups += sorted({row['group_uuid'] for row in new})
    return True


def remove_members(writer: Writer, instances: Sequence[str]) -> None:
    """Remove instances from the groups that they are members of."""
    found = writer.conn.execute(_GROUPS_OF, {'keys': instances})
    groups = sorted(set(found.scalars()))
    if groups:
        writer.conn.execute(_REMOVE, {'keys': instances})
        writer.touched.groups += groups


def _members(
    conn: Connection, groups: Sequence[str]
) -> dict[str, dict[str, set[str]]]:
    """Return the hosts of each member, by group and instance.

    A member that is not placed has none, one that moves has two.
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


def _with(group: Any, hosts: set[str], host: str) -> set[str]:
    """Return the hosts that an instance counts on once it has *host* too.

    Under anti-affinity an instance that moves counts on both its hosts.
    Under affinity only the host that it moves to matters.
    """
    return {*hosts, host} if group.policy == _ANTI_AFFINITY else {host}


def _holds(group: Any, places: Mapping[str, set[str]]) -> bool:
    """Whether a group's policy holds for the hosts of its members."""
    counts = Counter(host for hosts in places.values() for host in hosts)
    if group.policy == _ANTI_AFFINITY:
        limit = group.max_server_per_host or 1
        return max(counts.values(), default=0) <= limit
    return len(counts) <= 1
