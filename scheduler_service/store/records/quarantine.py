"""Counts redelivered messages, and keeps those that were quarantined.

A message that ends each daemon that works on it is delivered again and again
until its count exceeds the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Writer

_MAX_CHARACTERS = 1_000_000
_QUARANTINED = sa.select(
    schema.quarantine.c.message_id,
    schema.quarantine.c.method,
    schema.quarantine.c.deliveries,
    schema.quarantine.c.changed_at,
).where(schema.quarantine.c.quarantined == 1)


def count_delivery(
    writer: Writer, message_id: str, method: str, message: str, limit: int
) -> bool:
    """Count a delivery; return whether the message may be worked on.

    :param message: JSON ``{context, method, args}``, as it was received
    :param limit: deliveries after which it is quarantined; 0: no limit
    """
    conn = writer.conn
    table = schema.quarantine
    mine = table.c.message_id == message_id
    first = {
        'message_id': message_id,
        'deliveries': 0,
        'quarantined': 0,
        'method': method[:64],
        'message': message[:_MAX_CHARACTERS],
    }
    rows.insert_missing(conn, table, first)
    row = conn.execute(sa.select(table).where(mine).with_for_update()).first()
    if row is None:
        # Another daemon completed it at this moment.
        return True
    deliveries = row.deliveries + 1
    is_over = bool(row.quarantined or (limit and deliveries > limit))
    conn.execute(
        sa.update(table)
        .where(mine)
        .values(deliveries=deliveries, quarantined=int(is_over))
    )
    return not is_over


def uncount(writer: Writer, message_ids: Sequence[str]) -> None:
    """Take back one delivery of each message that is not quarantined."""
    table = schema.quarantine
    for message_id in message_ids:
        mine = (table.c.message_id == message_id) & (table.c.quarantined == 0)
        writer.conn.execute(
            sa.update(table)
            .where(mine, table.c.deliveries > 0)
            .values(deliveries=table.c.deliveries - 1)
        )


def clear(writer: Writer, message_id: str) -> None:
    """Delete the count of a message that was worked on to the end."""
    table = schema.quarantine
    mine = (table.c.message_id == message_id) & (table.c.quarantined == 0)
    writer.conn.execute(sa.delete(table).where(mine))


def listing(conn: Connection) -> list[dict[str, Any]]:
    """Return the messages that were quarantined, newest first."""
    query = _QUARANTINED.order_by(schema.quarantine.c.changed_at.desc())
    return [dict(row._mapping) for row in conn.execute(query)]


def show(conn: Connection, message_id: str) -> dict[str, Any]:
    """Return a message that was quarantined, with its content.

    :raises MessageNotFound: there is no such message
    """
    table = schema.quarantine
    query = _QUARANTINED.add_columns(table.c.message)
    row = conn.execute(query.where(table.c.message_id == message_id)).first()
    if row is None:
        raise errors.MessageNotFound(message_id=message_id)
    try:
        message = msgspec.json.decode(row.message)
    except msgspec.DecodeError:
        # The message was too large and was cut.
        message = row.message
    return {**row._mapping, 'message': message}


def drop(writer: Writer, message_id: str) -> int:
    """Delete a message that was quarantined; return how many there were."""
    table = schema.quarantine
    mine = (table.c.message_id == message_id) & (table.c.quarantined == 1)
    return writer.conn.execute(sa.delete(table).where(mine)).rowcount


def prune(writer: Writer, older_than: float) -> int:
    """Delete counts of messages that were not delivered again lately.

    :param older_than: seconds since the last delivery
    :return: how many were deleted
    """
    before = clock.read(writer.conn) - older_than
    table = schema.quarantine
    old = (table.c.changed_at < before) & (table.c.quarantined == 0)
    return writer.conn.execute(sa.delete(table).where(old)).rowcount
