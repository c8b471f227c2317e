"""Which claims have allocations in the placement service that are ours.

Stateless: runs on the thread that owns the writing transaction. A record is
written before the allocations are made, so that none is forgotten where a
daemon dies, and deleted once the host has the instance: from then on they are
the compute service's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import in_chunks

_CHUNK = 500


class Record(NamedTuple):
    """An instance and the host that it has allocations on.

    :ivar resources: JSON of the amounts
    """

    instance_uuid: str
    host_id: int
    host_uuid: str
    resources: str


def intend(
    conn: Connection, claims: Iterable[tuple[str, str, Mapping[str, int]]]
) -> None:
    """Record that allocations are about to be made.

    :param claims: (instance, uuid of the host, amounts)
    :raises DBDuplicateEntry: another daemon records the same just now
    """
    table, hosts = schema.placement_claims, schema.hosts
    for part in in_chunks(claims, _CHUNK):
        ids = sa.select(hosts.c.uuid, hosts.c.id).where(
            hosts.c.uuid.in_({host for _, host, _ in part})
        )
        of_host = dict(tuple(row) for row in conn.execute(ids))
        uuids = sorted(uuid for uuid, _, _ in part)
        # Waits for whoever undoes the same at this moment.
        known = sa.select(table.c.instance_uuid, table.c.host_id).where(
            table.c.instance_uuid.in_(uuids)
        )
        there = {tuple(row) for row in conn.execute(known.with_for_update())}
        new = [
            {
                'instance_uuid': uuid,
                'host_id': of_host[host],
                'made_at': None,
                'resources': rows.document(amounts),
            }
            for uuid, host, amounts in part
            if host in of_host and (uuid, of_host[host]) not in there
        ]
        if new:
            conn.execute(table.insert(), new)


def mark_made(conn: Connection, instances: Sequence[str]) -> None:
    """Record that the allocations of instances are made."""
    table = schema.placement_claims
    for part in in_chunks(instances, _CHUNK):
        conn.execute(
            sa.update(table)
            .where(table.c.instance_uuid.in_(part), table.c.made_at.is_(None))
            .values(made_at=clock.NOW)
        )


def forget(conn: Connection, instances: Sequence[str]) -> None:
    """Forget the records of instances: others undo their allocations."""
    table = schema.placement_claims
    for part in in_chunks(instances, _CHUNK):
        conn.execute(sa.delete(table).where(table.c.instance_uuid.in_(part)))


def orphans(conn: Connection, limit: int) -> list[Record]:
    """Return records of claims that are held no more."""
    table, held, hosts = (
        schema.placement_claims,
        schema.allocations,
        schema.hosts,
    )
    query = (
        sa.select(
            table.c.instance_uuid,
            table.c.host_id,
            hosts.c.uuid,
            table.c.resources,
        )
        .join(hosts, hosts.c.id == table.c.host_id)
        .where(
            ~sa.exists().where(
                held.c.consumer_uuid == table.c.instance_uuid,
                held.c.host_id == table.c.host_id,
            )
        )
        .limit(limit)
    )
    return [Record(*row) for row in conn.execute(query)]


def take_orphan(conn: Connection, record: Record) -> bool:
    """Delete the record of a claim that is held no more, and lock it.

    :return: false: somebody claimed or undid it in the meantime
    """
    table, held = schema.placement_claims, schema.allocations
    mine = (table.c.instance_uuid == record.instance_uuid) & (
        table.c.host_id == record.host_id
    )
    gone = conn.execute(sa.delete(table).where(mine)).rowcount
    claimed = conn.execute(
        sa.select(held.c.consumer_uuid).where(
            held.c.consumer_uuid == record.instance_uuid,
            held.c.host_id == record.host_id,
        )
    ).first()
    if claimed is not None and gone:
        conn.execute(
            table.insert(),
            {
                'instance_uuid': record.instance_uuid,
                'host_id': record.host_id,
                'made_at': None,
                'resources': record.resources,
            },
        )
    return bool(gone) and claimed is None


def unconfirmed(
    conn: Connection, older_than: float, limit: int
) -> list[Record]:
    """Return records whose allocations were made long ago, oldest first.

    :param older_than: seconds, by the database's clock
    """
    table, hosts = schema.placement_claims, schema.hosts
    before = clock.read(conn) - older_than
    query = (
        sa.select(
            table.c.instance_uuid,
            table.c.host_id,
            hosts.c.uuid,
            table.c.resources,
        )
        .join(hosts, hosts.c.id == table.c.host_id)
        .where(table.c.made_at < before)
        .order_by(table.c.made_at)
        .limit(limit)
    )
    return [Record(*row) for row in conn.execute(query)]


def counted(
    conn: Connection, host_ids: Sequence[int], before: float
) -> dict[int, list[str]]:
    """Return the instances whose allocations were made before, by host id.

    :param before: time by the database's clock
    """
    table = schema.placement_claims
    found: dict[int, list[str]] = {}
    for part in in_chunks(host_ids, _CHUNK):
        query = sa.select(table.c.host_id, table.c.instance_uuid).where(
            table.c.host_id.in_(part), table.c.made_at <= before
        )
        for host_id, uuid in conn.execute(query):
            found.setdefault(host_id, []).append(uuid)
    return found
