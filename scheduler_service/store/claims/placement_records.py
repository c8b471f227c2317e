"""Which claims have allocations in the placement service that are ours.

Stateless: runs on the thread that owns the writing transaction. A record is
written before the allocations are made, so that none is forgotten where a
daemon dies, and deleted once the host has the instance: from then on they are
the compute service's.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import in_chunks

_CHUNK = 500
_INTENT = {'instance_uuid': 'text', 'host_uuid': 'text', 'resources': 'text'}


class Record(NamedTuple):
    """An instance and the host that it has allocations on.

    :ivar resources: JSON of the amounts, or of the allocations of several
        providers and their mappings
    """

    instance_uuid: str
    host_id: int
    host_uuid: str
    resources: str

    @property
    def allocations(self) -> dict[str, dict[str, int]]:
        """Uuid of a provider -> resource class -> amount."""
        found = msgspec.json.decode(self.resources)
        if 'allocations' not in found:
            return {self.host_uuid: found}
        return {
            uuid: one['resources']
            for uuid, one in found['allocations'].items()
        }


# An instance, the uuid of its host, and the amounts, or a document with the
# allocations of several providers.
Intent = tuple[str, str, Mapping[str, Any]]


def intend_new(conn: Connection, claims: Iterable[Intent]) -> None:
    """Record that allocations are about to be made, in one statement.

    :raises DBDuplicateEntry: one has a record: see :func:`intend`
    """
    dialect = rows.dialect_of(conn)
    for part in in_chunks(claims, _CHUNK):
        values = [(uuid, host, rows.document(amounts))
                  for uuid, host, amounts in part]  # fmt: skip
        conn.execute(_inserting(dialect), rows.pack(dialect, _INTENT, values))


@functools.cache
def _inserting(dialect: str) -> sa.TextClause:
    return sa.text(
        'INSERT INTO placement_claims (instance_uuid, host_id, resources) '  # noqa: S608
        'SELECT a.instance_uuid, hosts.id, a.resources '
        f'FROM {rows.source(dialect, _INTENT)} '
        'JOIN hosts ON hosts.uuid = a.host_uuid'
    )


def intend(conn: Connection, claims: Iterable[Intent]) -> None:
    """Record that allocations are about to be made, or may be there already.

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


def mark_made(
    conn: Connection,
    instances: Sequence[str],
    hosts: Collection[str],
    age: float = 0.0,
) -> None:
    """Record that the allocations of instances are made.

    :param hosts: uuids of the hosts that they are on
    :param age: how long ago they were made, in seconds
    """
    for part in in_chunks(instances, _CHUNK):
        conn.execute(
            _marking(), {'uuids': part, 'on': sorted(hosts), 'age': age}
        )


@functools.cache
def _marking() -> sa.Update:
    """Return the statement, made once: each call of the service needs it."""
    table, known = schema.placement_claims, schema.hosts
    on: Any = sa.bindparam('on', expanding=True)
    uuids: Any = sa.bindparam('uuids', expanding=True)
    return (
        sa.update(table)
        .where(
            table.c.instance_uuid.in_(uuids),
            table.c.host_id.in_(
                sa.select(known.c.id).where(known.c.uuid.in_(on))
            ),
            table.c.made_at.is_(None),
        )
        .values(made_at=clock.NOW - sa.bindparam('age', type_=sa.Double()))
    )


def replace(
    conn: Connection, instance: str, host: str, document: Mapping[str, Any]
) -> None:
    """Record other allocations for a claim, of which none were made.

    :param host: uuid of the host
    """
    table, known = schema.placement_claims, schema.hosts
    on = sa.select(known.c.id).where(known.c.uuid == host)
    conn.execute(
        sa.update(table)
        .where(table.c.instance_uuid == instance, table.c.host_id.in_(on))
        .values(resources=rows.document(document))
    )


def recorded(
    conn: Connection, instance: str, host: str
) -> dict[str, Any] | None:
    """Return what is recorded of a claim on a host; None: nothing is.

    :param host: uuid of the host
    """
    table, known = schema.placement_claims, schema.hosts
    query = (
        sa.select(table.c.resources)
        .join(known, known.c.id == table.c.host_id)
        .where(table.c.instance_uuid == instance, known.c.uuid == host)
    )
    text = conn.execute(query).scalar()
    return None if text is None else dict(msgspec.json.decode(text))


def forget(conn: Connection, instances: Sequence[str]) -> None:
    """Forget the records of instances: others undo their allocations."""
    table = schema.placement_claims
    for part in in_chunks(instances, _CHUNK):
        conn.execute(sa.delete(table).where(table.c.instance_uuid.in_(part)))


def orphans(conn: Connection, limit: int) -> list[Record]:
    """Return records of claims that are held no more."""
    table, held = schema.placement_claims, schema.allocations
    query = (
        _records()
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
    table = schema.placement_claims
    before = clock.read(conn) - older_than
    query = (
        _records()
        .where(table.c.made_at < before)
        .order_by(table.c.made_at)
        .limit(limit)
    )
    return [Record(*row) for row in conn.execute(query)]


def unmarked(conn: Connection, older_than: float, limit: int) -> list[Record]:
    """Return records of old claims of which it is not known how they ended.

    A daemon died before it recorded that their allocations were made.

    :param older_than: seconds since the claim, by the database's clock
    """
    table, placed, moving = (
        schema.placement_claims,
        schema.instances,
        schema.moves,
    )
    before = clock.read(conn) - older_than
    claimed_at = sa.func.coalesce(moving.c.created_at, placed.c.created_at)
    query = (
        _records()
        .outerjoin(placed, placed.c.uuid == table.c.instance_uuid)
        .outerjoin(
            moving,
            (moving.c.instance_uuid == table.c.instance_uuid)
            & (moving.c.host_id == table.c.host_id),
        )
        .where(table.c.made_at.is_(None), claimed_at < before)
        .limit(limit)
    )
    return [Record(*row) for row in conn.execute(query)]


def has_unmarked(conn: Connection) -> bool:
    """Whether allocations are being made, or were and are not marked yet."""
    table = schema.placement_claims
    query = sa.select(table.c.host_id).where(table.c.made_at.is_(None))
    return conn.execute(query.limit(1)).first() is not None


def _records() -> sa.Select[Any]:
    table, hosts = schema.placement_claims, schema.hosts
    return sa.select(
        table.c.instance_uuid,
        table.c.host_id,
        hosts.c.uuid,
        table.c.resources,
    ).join(hosts, hosts.c.id == table.c.host_id)


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
