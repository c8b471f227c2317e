"""When each service host last sent a heartbeat, by the database's clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Writer, in_chunks


def record(writer: Writer, hosts: Iterable[str]) -> None:
    """Record that service hosts sent a heartbeat now."""
    for part in in_chunks(sorted(set(hosts))):
        rows.insert_packed(
            writer.conn,
            'heartbeats',
            {'host': 'text'},
            [(host,) for host in part],
            'seen_at',
            key=['host'],
        )


def stale_hosts(
    conn: Connection, down_after: float, now: float | None = None
) -> list[int]:
    """Return ids of hosts that are up and whose last heartbeat is too old.

    A host that never sent a heartbeat keeps the state of its document.

    :param down_after: seconds
    :param now: the time, where it is read already
    """
    now = clock.read(conn) if now is None else now
    beats, hosts = schema.heartbeats, schema.hosts
    query = (
        sa.select(hosts.c.id)
        .join(beats, beats.c.host == hosts.c.host)
        .where(
            clock.is_older(beats.c.seen_at, now, down_after),
            hosts.c.state == 'up',
        )
        .order_by(hosts.c.id)
    )
    return list(conn.execute(query).scalars())


def mark_down(writer: Writer, ids: Sequence[int], down_after: float) -> int:
    """Mark hosts as down, unless they sent a heartbeat in the meantime.

    :return: how many went down
    """
    conn = writer.conn
    still = sorted({*ids} & {*stale_hosts(conn, down_after)})
    return _mark(writer, still, 'down')


def mark_up(writer: Writer, hosts: Sequence[str]) -> int:
    """Mark service hosts as up; return how many were down."""
    table = schema.hosts
    query = sa.select(table.c.id).where(table.c.state == 'down')
    down = rows.select_in(writer.conn, query, table.c.host, {*hosts})
    return _mark(writer, sorted(row.id for row in down), 'up')


def _mark(writer: Writer, ids: Sequence[int], state: str) -> int:
    table = schema.hosts
    marked = 0
    for part in in_chunks(ids):
        change = sa.update(table).where(
            table.c.id.in_(part), table.c.state != state
        )
        marked += writer.conn.execute(change.values(state=state)).rowcount
        writer.touched.load += part
    return marked
