"""Claims of pods, as whoever follows a cluster writes them.

A pod that is bound here is claimed as instances are. A pod that is seen on its
node confirms that claim, or is claimed as it is seen: also where there is no
room, since it is a fact. Nothing here concerns instances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import Placement, Selection
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import claim_sql, lifecycle
from scheduler_service.store.connection import Writer

POD = 'pod'
_INSTANCES, _HELD = schema.instances, schema.allocations
_HELD_BY = sa.select(_HELD).where(rows.among(_HELD.c.consumer_uuid))
_HOSTS = sa.select(schema.hosts.c.id, schema.hosts.c.host).where(
    rows.among(schema.hosts.c.host)
)


class PodClaim(NamedTuple):
    """What a pod takes of the host that it is on.

    :ivar name: its namespace, a slash, its name
    :ivar amounts: resource class -> amount; what the host does not offer is
        left out
    :ivar shared: resource class -> the aggregate that gives it to the host
    """

    uid: str
    name: str
    host: str
    node: str
    amounts: dict[str, int]
    shared: dict[str, int] = {}


class StoredClaim(NamedTuple):
    """A claim of a pod.

    :ivar age: seconds since it was made, by the database's clock
    """

    uid: str
    host: str
    state: str
    age: float


def stored(conn: Connection) -> list[StoredClaim]:
    """Return the claims of all pods."""
    made, now = _INSTANCES.c.created_at, clock.read(conn)
    query = sa.select(
        _INSTANCES.c.uuid, _INSTANCES.c.host, _INSTANCES.c.state, made
    ).where(_INSTANCES.c.kind == POD)
    return [
        StoredClaim(uid, host, state, now - at)
        for uid, host, state, at in conn.execute(query)
    ]


def held(conn: Connection) -> dict[str, PodClaim]:
    """Return what all pods hold of the hosts that they are claimed on."""
    of, on = _INSTANCES.c, schema.hosts.c
    claims = {
        row.uuid: PodClaim(*row, {}, {})
        for row in conn.execute(
            sa.select(of.uuid, of.request_id, of.host, of.node)
            .where(of.kind == POD)
        )
    }  # fmt: skip
    query = (
        sa.select(_HELD.c.consumer_uuid, _HELD.c.resource_class,
                  _HELD.c.amount, _HELD.c.host_id)
        .join(_INSTANCES, of.uuid == _HELD.c.consumer_uuid)
        .outerjoin(schema.hosts, on.id == _HELD.c.host_id)
        .where(of.kind == POD, (_HELD.c.host_id < 0)
               | ((of.host == on.host) & (of.node == on.node)))
    )  # fmt: skip
    for uid, name, amount, provider in conn.execute(query):
        if uid in claims:
            claims[uid].amounts[name] = amount
            if provider < 0:
                claims[uid].shared[name] = provider
    return claims


def shared(conn: Connection) -> dict[str, dict[str, int]]:
    """Return what aggregates offer: of each service host, by class.

    As in ``columns.build``, the first of several gives the class.
    """
    offered, members = schema.inventories.c, schema.aggregate_hosts.c
    query = (
        sa.select(members.host, offered.resource_class, offered.host_id)
        .where(
            schema.IS_OFFERED,
            offered.host_id < 0,
            members.aggregate_id == -1 - offered.host_id,
        )
        .order_by(offered.host_id)
    )
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for host, name, provider in conn.execute(query):
        found[host][name] = provider
    return dict(found)


def release(
    writer: Writer, uids: Iterable[str], state: str | None = None
) -> list[str]:
    """Release the claims of pods that are gone; return their uids.

    :param state: only claims that are in this state still
    """
    gone = [
        uid
        for uid, row in lifecycle.lock(writer.conn, uids).items()
        if row.kind == POD and state in (None, row.state)
    ]
    return lifecycle.release(writer, gone)


def confirm(writer: Writer, pods: Sequence[PodClaim]) -> None:
    """Have pods hold exactly what they take where they were seen.

    :raises DBDuplicateEntry: one of them was claimed meanwhile
    """
    conn = writer.conn
    locked = lifecycle.lock(conn, [pod.uid for pod in pods])
    host_ids = {
        row.host: row.id
        for row in rows.select_among(conn, _HOSTS, {pod.host for pod in pods})
    }
    held: dict[str, dict[tuple[int, str], int]] = defaultdict(dict)
    for row in rows.select_among(conn, _HELD_BY, locked):
        key = row.host_id, row.resource_class
        held[row.consumer_uuid][key] = row.amount
    seen, changed, added = [], [], []
    for pod in pods:
        row, host_id = locked.get(pod.uid), host_ids.get(pod.host)
        if host_id is None or (row is not None and row.kind != POD):
            continue
        takes = {
            (pod.shared.get(name, host_id), name): n
            for name, n in pod.amounts.items()
        }
        if row is None:
            added.append((pod, takes))
        elif row.host != pod.host or held[pod.uid] != takes:
            changed.append((pod, takes))
        elif row.state != 'confirmed':
            seen.append(pod.uid)
    lifecycle.release_allocations(writer, [pod.uid for pod, _ in changed])
    moved = [
        {'uuid': pod.uid, 'host': pod.host, 'node': pod.node,
         'state': 'confirmed', 'placement': _placement(pod)}
        for pod, _ in changed
    ]  # fmt: skip
    rows.update(conn, _INSTANCES, 'uuid', moved)
    if seen:
        conn.execute(lifecycle.CONFIRM, {'keys': seen})
    if added:
        rows.insert_packed(
            conn,
            'instances',
            claim_sql.INSTANCE,
            [_row(pod) for pod, _ in added],
            'created_at',
        )
    taken = [(pod.uid, takes) for pod, takes in changed + added]
    lifecycle.take(writer, taken)
    hosts = {host_id for _, takes in taken for host_id, _ in takes}
    writer.touched.load += sorted(hosts)


def _row(pod: PodClaim) -> tuple[Any, ...]:
    """Return a row in the order of :data:`claim_sql.INSTANCE`."""
    space = pod.name.partition('/')[0]
    return (pod.uid, pod.host, pod.node, 'confirmed', POD, space, pod.name,
            '{}', _placement(pod), None)  # fmt: skip


def _placement(pod: PodClaim) -> str:
    selected = Selection(host=pod.host, node=pod.node, uuid='')
    made = Placement(instance_uuid=pod.uid, selected=selected)
    document = {**msgspec.to_builtins(made), 'amounts': dict(pod.amounts)}
    if pod.shared:
        document['shared'] = dict(pod.shared)
    return msgspec.json.encode(document).decode()
