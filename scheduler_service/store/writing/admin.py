"""What an operator changes one by one, without an inventory document.

Stateless: runs on the thread that owns the writing transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.model import Aggregate, Pool, ServerGroup, documents
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer, in_chunks, next_number
from scheduler_service.store.reading import loading
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import pools as pool_rows
from scheduler_service.store.writing import server_groups

_CHUNK = 500


def set_host_status(
    writer: Writer, host: str, enabled: bool, reason: str | None = None
) -> int:
    """Enable or disable all nodes of a service host; return how many.

    :raises HostNotFound: there is no such host
    :raises InvalidRequest: the reason is too long
    """
    documents.host_report({'host': host, 'disabled_reason': reason})
    table = schema.hosts
    ids = _host_ids(writer, host)
    writer.conn.execute(
        sa.update(table)
        .where(table.c.id.in_(ids))
        .values(
            status='enabled' if enabled else 'disabled',
            disabled_reason=None if enabled else reason,
        )
    )
    writer.touched.hosts += ids
    return len(ids)


def remove_host(writer: Writer, host: str) -> list[Aggregate]:
    """Remove all nodes of a service host, and it from its aggregates.

    :return: those aggregates, as they were
    :raises HostNotFound: there is no such host
    :raises Conflict: one of them still holds claims
    """
    # Lock: it could join an aggregate meanwhile.
    next_number(writer.conn, 'host_id', 0)
    host_rows.remove(writer, _host_ids(writer, host))
    return aggregate_rows.remove_host(writer, host)


def _host_ids(writer: Writer, host: str) -> list[int]:
    table = schema.hosts
    query = sa.select(table.c.id).where(table.c.host == host)
    ids = list(writer.conn.execute(query).scalars())
    if not ids:
        raise errors.HostNotFound(f'There is no host {host}', host=host)
    return ids


def create_aggregate(
    writer: Writer,
    name: str,
    metadata: Mapping[str, str],
    hosts: Sequence[str] = (),
) -> Aggregate:
    """Add an aggregate with the next free id; return it.

    :raises Conflict: the name is taken
    :raises InvalidInventory: a name is too long, or a number too large
    """
    present = loading.aggregates(writer.conn)
    for one in present:
        if one.name == name:
            raise errors.Conflict(f'Aggregate {name} ({one.id}) is there')
    taken = [one.id for one in present]
    made = Aggregate(
        id=max(taken, default=0) + 1,
        name=name,
        hosts=list(hosts),
        metadata=dict(metadata),
    )
    aggregate_rows.add(writer, [documents.check_entity(made)])
    return made


def change_aggregate(
    writer: Writer, named: str, change: Callable[[Aggregate], Aggregate]
) -> Aggregate:
    """Replace an aggregate by what *change* returns; return that.

    :param named: the aggregate's id, name or uuid
    :raises AggregateNotFound: there is no such aggregate
    :raises HostNotFound: a host that it gets is not stored
    :raises Conflict: a host would get into a second availability zone
    :raises InvalidInventory: a name is too long, or a number too large
    """
    # Lock: two changes at once could each see no other zone.
    next_number(writer.conn, 'host_id', 0)
    old = find_aggregate(writer, named)
    changed = documents.check_entity(change(old))
    _check_stored(writer, {*changed.hosts} - {*old.hosts})
    _check_zones(writer, old, changed)
    aggregate_rows.remove(writer, [changed.id])
    aggregate_rows.add(writer, [changed])
    return changed


def _check_stored(writer: Writer, hosts: Iterable[str]) -> None:
    """Check that there are hosts of all names.

    :raises HostNotFound: with those that are not there
    """
    table = schema.hosts
    missing = {*hosts}
    for part in in_chunks(sorted(missing), _CHUNK):
        query = sa.select(table.c.host).where(table.c.host.in_(part))
        missing -= {*writer.conn.execute(query).scalars()}
    if missing:
        names = ', '.join(sorted(missing))
        raise errors.HostNotFound(
            f'There is no host {names}', hosts=sorted(missing)
        )


def _check_zones(writer: Writer, old: Aggregate, changed: Aggregate) -> None:
    """Check that no host gets into a zone beside that of other aggregates.

    Where other services stored hosts in several zones they stay there.

    :raises Conflict: with the host, and the aggregate that has its zone
    """
    zones = set(changed.zones)
    came = zones - set(old.zones)
    gains = {
        host: came if host in old.hosts else zones for host in changed.hosts
    }
    others = [
        one
        for one in loading.aggregates(writer.conn)
        if one.id != changed.id and one.zones
    ]
    has: dict[str, set[str]] = {}
    for one in others:
        for host in gains.keys() & {*one.hosts}:
            has.setdefault(host, set()).update(one.zones)
    for host in sorted(has):
        if gains[host] - has[host]:
            first = next(one for one in others if host in one.hosts)
            raise errors.Conflict(
                f'Host {host} is in availability zone '
                f'{", ".join(sorted(has[host]))} by aggregate {first.name} '
                f'({first.id}), and cannot be in '
                f'{", ".join(sorted(zones))} as well',
                host=host,
                aggregate=first.id,
            )


def find_aggregate(writer: Writer, named: str) -> Aggregate:
    """Return an aggregate by its id, name or uuid.

    :raises AggregateNotFound: there is no such aggregate
    :raises Conflict: several have the name
    """
    present = loading.aggregates(writer.conn)
    for one in present:
        if named in (str(one.id), one.uuid):
            return one
    found = [one for one in present if one.name == named]
    if not found:
        raise errors.AggregateNotFound(
            f'There is no aggregate {named}', aggregate=named
        )
    if len(found) > 1:
        ids = ', '.join(str(one.id) for one in found)
        raise errors.Conflict(
            f'Several aggregates are called {named}; give an id: {ids}'
        )
    return found[0]


def delete_aggregate(writer: Writer, named: str) -> Aggregate:
    """Remove an aggregate; return it.

    :raises AggregateNotFound: there is no such aggregate
    """
    found = find_aggregate(writer, named)
    aggregate_rows.remove(writer, [found.id])
    return found


def put_aggregates(writer: Writer, aggregates: Sequence[Aggregate]) -> int:
    """Add aggregates, or replace those of the same id; return how many.

    Aggregates that are stored like this already are not written.
    """
    # Lock: several daemons may receive the same aggregates.
    next_number(writer.conn, 'host_id', 0)
    stored = {one.id: one for one in loading.aggregates(writer.conn)}
    wanted = {
        one.id: msgspec.structs.replace(one, hosts=sorted(set(one.hosts)))
        for one in aggregates
    }
    differ = [one for one in wanted.values() if stored.get(one.id) != one]
    if differ:
        aggregate_rows.remove(writer, [one.id for one in differ])
        aggregate_rows.add(writer, differ)
    return len(differ)


def set_metadata(one: Aggregate, pairs: Mapping[str, str | None]) -> Aggregate:
    """Return an aggregate with metadata set, or removed where None.

    :param pairs: key -> new value, None: remove the key
    """
    metadata: dict[str, Any] = {**one.metadata, **pairs}
    kept = {key: value for key, value in metadata.items() if value is not None}
    return msgspec.structs.replace(one, metadata=kept)


def create_pool(
    writer: Writer, pool_id: str, name: str, attributes: Mapping[str, str]
) -> Pool:
    """Add a pool; return it.

    :raises Conflict: the id or the name is taken
    """
    for pool in loading.pools(writer.conn).values():
        if pool_id == pool.id or name == pool.name:
            raise errors.Conflict(
                f'Pool {pool.name} ({pool.id}) already exists'
            )
    made = Pool(id=pool_id, name=name, attributes=dict(attributes))
    pool_rows.add(writer, [made])
    return made


def find_pool(writer: Writer, named: str) -> Pool:
    """Return a pool by its id or name.

    :raises PoolNotFound: there is no such pool
    """
    for pool in loading.pools(writer.conn).values():
        if named in (pool.id, pool.name):
            return pool
    raise errors.PoolNotFound(f'There is no pool {named}', pool=named)


def set_pool(
    writer: Writer, named: str, pairs: Mapping[str, str | None]
) -> Pool:
    """Set attributes of a pool, or remove those that are None.

    :raises PoolNotFound: there is no such pool
    :raises InvalidInventory: a key or value is too long
    """
    old = find_pool(writer, named)
    merged: dict[str, Any] = {**old.attributes, **pairs}
    kept = {key: value for key, value in merged.items() if value is not None}
    changed = documents.check_entity(
        msgspec.structs.replace(old, attributes=kept)
    )
    pool_rows.remove(writer, [old.id])
    pool_rows.add(writer, [changed])
    return changed


def delete_pool(writer: Writer, named: str) -> Pool:
    """Remove a pool that has no zones.

    :raises PoolNotFound: there is no such pool
    :raises Conflict: zones are still in it
    """
    found = find_pool(writer, named)
    table = schema.zones
    inside = writer.conn.execute(
        sa.select(sa.func.count()).where(table.c.pool_id == found.id)
    ).scalar_one()
    if inside:
        raise errors.Conflict(
            f'{inside} zones are still in pool {found.name}', zones=inside
        )
    pool_rows.remove(writer, [found.id])
    return found


def create_group(writer: Writer, group: ServerGroup) -> ServerGroup:
    """Add a server group.

    :raises Conflict: the uuid is taken
    """
    if loading.groups(writer.conn, [group.uuid]):
        raise errors.Conflict(f'Server group {group.uuid} already exists')
    server_groups.add(writer, [group])
    return group


def delete_group(writer: Writer, uuid: str) -> None:
    """Remove a server group.

    :raises ServerGroupNotFound: there is no such group
    """
    if not server_groups.remove(writer, [uuid]):
        raise errors.ServerGroupNotFound(
            f'There is no server group {uuid}', uuid=uuid
        )
