"""Daemons that share the store: who they are, and how they are configured.

Stateless: any thread may call it with a connection of its own. Times are the
database's, so the clocks of the daemons do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Writer

# A daemon that gave no sign of life for so long is called silent, in seconds;
# it gives one every few seconds.
SILENT_S = 30.0


class Registration(NamedTuple):
    """What a daemon says of itself.

    :ivar id: of its process; no other has it
    :ivar name: which others may have by mistake
    :ivar version: its release
    :ivar fingerprint: the same for daemons that are configured alike
    :ivar document: group -> option -> ``{value, source}``
    """

    id: str
    name: str
    version: str
    fingerprint: str
    document: Mapping[str, Mapping[str, Any]]


def register(writer: Writer, one: Registration) -> None:
    """Record a daemon, or what changed of it."""
    values = {
        'name': one.name,
        'version': one.version,
        'fingerprint': one.fingerprint,
        'document': msgspec.json.encode(one.document).decode(),
        'seen_at': clock.NOW,
    }
    table, conn = schema.daemons, writer.conn
    known = sa.update(table).where(table.c.id == one.id).values(values)
    if not conn.execute(known).rowcount:
        conn.execute(
            table.insert().values(id=one.id, started_at=clock.NOW, **values)
        )


def touch(writer: Writer, daemon_id: str) -> bool:
    """Record a sign of life; return whether the daemon is recorded."""
    table = schema.daemons
    seen = (
        sa.update(table)
        .where(table.c.id == daemon_id)
        .values(seen_at=clock.NOW)
    )
    return bool(writer.conn.execute(seen).rowcount)


def remove(writer: Writer, daemon_id: str) -> None:
    """Remove a daemon, which stops."""
    table = schema.daemons
    writer.conn.execute(sa.delete(table).where(table.c.id == daemon_id))


def prune(writer: Writer, seconds: float) -> None:
    """Remove daemons without a sign of life for so long."""
    table = schema.daemons
    old = table.c.seen_at < clock.read(writer.conn) - seconds
    writer.conn.execute(sa.delete(table).where(old))


def listing(conn: Connection) -> list[dict[str, Any]]:
    """Return the daemons by name, without their configurations.

    :return: with ``silent_for``, seconds since the last sign of life
    """
    table = schema.daemons
    now = clock.read(conn)
    query = sa.select(
        table.c.id,
        table.c.name,
        table.c.version,
        table.c.fingerprint,
        table.c.started_at,
        table.c.seen_at,
    ).order_by(table.c.name, table.c.started_at)
    return [
        {**row._mapping, 'silent_for': max(0.0, now - row.seen_at)}
        for row in conn.execute(query)
    ]


def configuration(
    conn: Connection, name: str
) -> dict[str, dict[str, Any]] | None:
    """Return the configuration of a daemon; None: it is not known.

    Of several with the name it is the one with the last sign of life.
    """
    table = schema.daemons
    query = (
        sa.select(table.c.document)
        .where(table.c.name == name)
        .order_by(table.c.seen_at.desc())
        .limit(1)
    )
    text = conn.execute(query).scalar()
    found: dict[str, dict[str, Any]] | None = text and msgspec.json.decode(
        text
    )
    return found
