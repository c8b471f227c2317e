"""Rows of host aggregates: added and removed, and those of a host.

Stateless: runs on the thread that owns the writing transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.model import Aggregate
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import delete, insert


def add(writer: Writer, aggregates: Sequence[Aggregate]) -> None:
    """Add aggregates with their hosts and metadata."""
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
    writer.touched.aggregates = True


def remove(writer: Writer, ids: Sequence[int]) -> int:
    """Remove aggregates, not their hosts; return how many there were."""
    delete(writer.conn, schema.aggregate_metadata.c.aggregate_id, ids)
    delete(writer.conn, schema.aggregate_hosts.c.aggregate_id, ids)
    writer.touched.aggregates = True
    return delete(writer.conn, schema.aggregates.c.id, ids)


def remove_host(writer: Writer, host: str) -> list[Aggregate]:
    """Remove a service host from its aggregates; return those, as they were.

    :param host: its name; it need not be stored
    """
    stored = loading.aggregates(writer.conn)
    found = [one for one in stored if host in one.hosts]
    if found:
        delete(writer.conn, schema.aggregate_hosts.c.host, [host])
        writer.touched.aggregates = True
    return found
