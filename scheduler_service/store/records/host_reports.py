"""What hosts report of themselves, and what is recorded beside it.

Heartbeats have the time of the database's clock. A report is a cast, so its
host does not learn that it was refused: how many were, and why the last, is
kept here, and is part of the host's document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments, texts
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Writer, in_chunks
from scheduler_service.store.reading import loading
from scheduler_service.store.records import daemons

_MAX_REASON = 1000
_CLAIM = 'uuid', 'kind', 'state', 'project_id', 'request_id', 'created_at'


def record_heartbeats(writer: Writer, hosts: Iterable[str]) -> None:
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


class Refusals(NamedTuple):
    """Reports of one service host that were refused.

    :ivar refused: how many
    :ivar reason: of the last one: the place, and what was expected there
    """

    refused: int
    reason: str

    def after(self, older: Refusals | None) -> Refusals:
        """Return these refusals together with older ones."""
        if older is None:
            return self
        return self._replace(refused=self.refused + older.refused)


def record_refusals(writer: Writer, refusals: Mapping[str, Refusals]) -> None:
    """Add refusals by service host."""
    conn, table = writer.conn, schema.refused_reports
    for host, added in sorted(refusals.items()):
        values = {
            'reason': added.reason[:_MAX_REASON],
            'refused_at': clock.NOW,
        }
        rows.insert_missing(
            conn, table, {'host': host, 'refused': 0, **values}
        )
        conn.execute(
            sa.update(table)
            .where(table.c.host == host)
            .values(refused=table.c.refused + added.refused, **values)
        )


def refusals_of(conn: Connection, host: str) -> Any:
    """Return the refusals of a service host, None where there were none.

    :return: with ``refused``, ``reason``, and ``refused_at`` of the last one,
        in seconds since the epoch, by the database's clock
    """
    table = schema.refused_reports
    return conn.execute(sa.select(table).where(table.c.host == host)).first()


def documents_of(conn: Connection, host: str) -> list[dict[str, Any]]:
    """Return the documents of a service host's nodes.

    :return: with the ``claims`` on each; where it is disabled, with
        ``disabled``; where reports were refused, with ``refused_reports``
    :raises HostNotFound: the host does not exist
    """
    hosts = schema.hosts.c
    ids = conn.execute(sa.select(hosts.id).where(hosts.host == host)).scalars()
    nodes = [
        msgspec.to_builtins(stored)
        for stored in loading.hosts(conn, ids).values()
    ]
    refusals = refusals_of(conn, host)
    refused = refusals and {
        'count': refusals.refused,
        'last_at': moments.text(refusals.refused_at),
        'last_reason': refusals.reason,
    }
    if not nodes:
        near = texts.nearest(host, sorted(loading.host_names(conn)))
        report = f'; a report was refused: {refused}' if refused else near
        raise errors.HostNotFound(f'There is no host {host}{report}')
    held = claim_queries.listing(conn, host)
    for node in nodes:
        if refused:
            node['refused_reports'] = refused
        if node.get('status') == 'disabled':
            reason = node.get('disabled_reason')
            node['disabled'] = daemons.disabling(conn, host, reason)
        node['claims'] = [
            {name: row[name] for name in _CLAIM}
            for row in held
            if row['node'] == node['hypervisor_hostname']
        ]
    return nodes
