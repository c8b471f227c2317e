"""Rows of host aggregates, and changes by operators and other services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import Aggregate, documents
from scheduler_service.model.inventory import provider_of
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer, next_number
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import delete, insert, select_in
from scheduler_service.store.writing import inventories


def add(writer: Writer, aggregates: Sequence[Aggregate]) -> None:
    """Add aggregates, or replace those of the same ids.

    What claims hold of their resources stays allocated.
    """
    _delete_rows(writer.conn, [aggregate.id for aggregate in aggregates])
    insert(
        writer.conn,
        schema.aggregates,
        ({'id': a.id, 'uuid': a.uuid, 'name': a.name} for a in aggregates),
    )
    insert(
        writer.conn,
        schema.aggregate_hosts,
        (
            {'aggregate_id': a.id, 'host': host}
            for a in aggregates
            for host in dict.fromkeys(a.hosts)
        ),
    )
    insert(
        writer.conn,
        schema.aggregate_metadata,
        (
            {'aggregate_id': a.id, 'key': key, 'value': value}
            for a in aggregates
            for key, value in a.metadata.items()
        ),
    )
    inventories.change(
        writer.conn,
        [provider_of(a.id) for a in aggregates],
        (
            inventories.row(provider_of(a.id), name, offer)
            for a in aggregates
            for name, offer in a.resources.items()
        ),
    )
    writer.touched.aggregates = True


def remove(writer: Writer, ids: Sequence[int]) -> int:
    """Remove aggregates, not their hosts; return how many there were."""
    inventories.change(writer.conn, [*map(provider_of, ids)], ())
    writer.touched.aggregates = True
    return _delete_rows(writer.conn, ids)


def _delete_rows(conn: Connection, ids: Sequence[int]) -> int:
    delete(conn, schema.aggregate_metadata.c.aggregate_id, ids)
    delete(conn, schema.aggregate_hosts.c.aggregate_id, ids)
    return delete(conn, schema.aggregates.c.id, ids)


def remove_host(writer: Writer, host: str) -> list[Aggregate]:
    """Remove a service host from its aggregates.

    :param host: name of the host, which need not be stored
    :return: the aggregates before the change
    """
    stored = loading.aggregates(writer.conn)
    containing = [aggregate for aggregate in stored if host in aggregate.hosts]
    if containing:
        delete(writer.conn, schema.aggregate_hosts.c.host, [host])
        writer.touched.aggregates = True
    return containing


def create(
    writer: Writer, name: str, metadata: Mapping[str, str]
) -> Aggregate:
    """Add an aggregate with the next free id; return it.

    :raises Conflict: the name is taken
    :raises InvalidInventory: a name is too long, or a number too large
    """
    number = 1
    for aggregate in loading.aggregates(writer.conn):
        if aggregate.name == name:
            raise errors.Conflict(
                f'Aggregate {name} ({aggregate.id}) already exists'
            )
        number = aggregate.id + 1
    new = Aggregate(id=number, name=name, metadata=dict(metadata))
    add(writer, [documents.check_entity(new)])
    return new


def change(
    writer: Writer, named: str, edit: Callable[[Aggregate], Aggregate]
) -> Aggregate:
    """Replace an aggregate by the result of *edit*; return it.

    :param named: the aggregate's id, name or uuid
    :raises AggregateNotFound: the aggregate does not exist
    :raises HostNotFound: a new host of the aggregate is not stored
    :raises Conflict: a host would get into a second availability zone
    :raises InvalidInventory: a name is too long, or a number too large
    """
    # Lock: concurrent changes could each put a host into another zone.
    next_number(writer.conn, 'host_id', 0)
    old = _find(writer, named)
    changed = documents.check_entity(edit(old))
    _check_stored(writer, {*changed.hosts} - {*old.hosts})
    _check_zones(writer, old, changed)
    add(writer, [changed])
    return changed


def _check_stored(writer: Writer, hosts: Iterable[str]) -> None:
    """Check that hosts of all names are stored.

    :raises HostNotFound: with the names of missing hosts
    """
    column = schema.hosts.c.host
    stored = select_in(writer.conn, sa.select(column), column, sorted(hosts))
    missing = {*hosts} - {row.host for row in stored}
    if missing:
        names = ', '.join(sorted(missing))
        raise errors.HostNotFound(
            f'There is no host {names}', hosts=sorted(missing)
        )


def _check_zones(writer: Writer, old: Aggregate, changed: Aggregate) -> None:
    """Check that no host gets into a second zone.

    Hosts that other services stored in several zones stay there.

    :raises Conflict: with the host, and the aggregate that has its zone
    """
    zones = set(changed.zones)
    came = zones - set(old.zones)
    zoned = [
        (aggregate, {*aggregate.hosts})
        for aggregate in loading.aggregates(writer.conn)
        if aggregate.id != changed.id and aggregate.zones
    ]
    for host in sorted(changed.hosts):
        by = [aggregate for aggregate, hosts in zoned if host in hosts]
        has = {zone for aggregate in by for zone in aggregate.zones}
        if by and (came if host in old.hosts else zones) - has:
            raise errors.Conflict(
                f'Host {host} is in availability zone '
                f'{", ".join(sorted(has))} by aggregate {by[0].name} '
                f'({by[0].id}), and cannot be in '
                f'{", ".join(sorted(zones))} as well',
                host=host,
                aggregate=by[0].id,
            )


def _find(writer: Writer, named: str) -> Aggregate:
    """Return an aggregate by its id, name or uuid.

    :raises AggregateNotFound: the aggregate does not exist
    :raises Conflict: several aggregates have the name
    """
    present = loading.aggregates(writer.conn, reported=True)
    for aggregate in present:
        if named in (str(aggregate.id), aggregate.uuid):
            return aggregate
    matching = [aggregate for aggregate in present if aggregate.name == named]
    if not matching:
        raise errors.AggregateNotFound(
            f'There is no aggregate {named}', aggregate=named
        )
    if len(matching) > 1:
        ids = ', '.join(str(aggregate.id) for aggregate in matching)
        raise errors.Conflict(
            f'Several aggregates are called {named}; give an id: {ids}'
        )
    return matching[0]


def delete_named(writer: Writer, named: str) -> Aggregate:
    """Remove an aggregate; return it.

    :raises AggregateNotFound: the aggregate does not exist
    """
    aggregate = _find(writer, named)
    remove(writer, [aggregate.id])
    return aggregate


def put(writer: Writer, aggregates: Sequence[Aggregate]) -> int:
    """Add aggregates, or replace those of the same id.

    Resources stay where none are given: other services know none.

    :return: how many were written; equal aggregates are not
    """
    # Lock: several daemons may receive the same aggregates.
    next_number(writer.conn, 'host_id', 0)
    present = loading.aggregates(writer.conn, reported=True)
    stored = {a.id: a for a in present}
    by_id = {
        a.id: msgspec.structs.replace(
            a,
            hosts=sorted(set(a.hosts)),
            resources=a.resources or stored.get(a.id, a).resources,
        )
        for a in aggregates
    }
    differ = [a for a in by_id.values() if stored.get(a.id) != a]
    if differ:
        add(writer, differ)
    return len(differ)


def replace(
    writer: Writer,
    aggregates: Sequence[Aggregate],
    is_managed: Callable[[Aggregate], bool] = lambda aggregate: True,
) -> None:
    """Put aggregates, and remove all other stored ones.

    :param is_managed: false for stored aggregates that stay
    """
    kept = {aggregate.id for aggregate in aggregates}
    gone = [
        aggregate.id
        for aggregate in loading.aggregates(writer.conn)
        if aggregate.id not in kept and is_managed(aggregate)
    ]
    if gone:
        remove(writer, gone)
    put(writer, aggregates)


def set_metadata(
    aggregate: Aggregate, pairs: Mapping[str, str | None]
) -> Aggregate:
    """Return an aggregate with metadata set, or removed where None.

    :param pairs: key -> new value, None: remove the key
    """
    metadata: dict[str, Any] = {**aggregate.metadata, **pairs}
    kept = {key: value for key, value in metadata.items() if value is not None}
    return msgspec.structs.replace(aggregate, metadata=kept)
