"""Messages that came again, counted, so that one that kills is put aside."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import Writer

_KEPT = 1_000_000


class Suspect(NamedTuple):
    """A message that was delivered more than once.

    :ivar message: JSON: ``{context, method, args}``, as it came
    """

    message_id: str
    method: str
    message: str


def begin(writer: Writer, one: Suspect, limit: int) -> bool:
    """Count that work on a message begins again; whether it may.

    :param limit: deliveries after which it may not; 0: it always may
    """
    conn = writer.conn
    table = schema.suspects
    mine = table.c.message_id == one.message_id
    found = conn.execute(sa.select(table).where(mine).with_for_update())
    row = found.first()
    deliveries = 1 if row is None else row.deliveries + 1
    aside = bool(limit and deliveries > limit) or bool(row and row.put_aside)
    values = {
        'deliveries': deliveries,
        'put_aside': int(aside),
        'changed_at': time.time(),
    }
    if row is None:
        conn.execute(
            table.insert(),
            {
                **values,
                'message_id': one.message_id,
                'method': one.method[:64],
                'message': one.message[:_KEPT],
            },
        )
    else:
        conn.execute(sa.update(table).where(mine).values(values))
    return not aside


def end(writer: Writer, message_id: str) -> None:
    """Forget a message that was worked on to the end."""
    table = schema.suspects
    mine = (table.c.message_id == message_id) & (table.c.put_aside == 0)
    writer.conn.execute(sa.delete(table).where(mine))


def listing(conn: Connection) -> list[dict[str, Any]]:
    """Return the messages that were put aside, newest first."""
    table = schema.suspects
    query = (
        sa.select(
            table.c.message_id,
            table.c.method,
            table.c.deliveries,
            table.c.changed_at,
        )
        .where(table.c.put_aside == 1)
        .order_by(table.c.changed_at.desc())
    )
    return [dict(row._mapping) for row in conn.execute(query)]


def show(conn: Connection, message_id: str) -> dict[str, Any]:
    """Return a message that was put aside, whole.

    :raises MessageNotFound: there is none
    """
    table = schema.suspects
    mine = (table.c.message_id == message_id) & (table.c.put_aside == 1)
    row = conn.execute(sa.select(table).where(mine)).first()
    if row is None:
        raise errors.MessageNotFound(message_id=message_id)
    try:
        message = msgspec.json.decode(row.message)
    except msgspec.DecodeError:
        # It was too large to be kept whole.
        message = row.message
    return {
        'message_id': row.message_id,
        'method': row.method,
        'deliveries': row.deliveries,
        'changed_at': row.changed_at,
        'message': message,
    }


def drop(writer: Writer, message_id: str) -> int:
    """Forget a message that was put aside; return whether there was one."""
    table = schema.suspects
    mine = (table.c.message_id == message_id) & (table.c.put_aside == 1)
    return writer.conn.execute(sa.delete(table).where(mine)).rowcount


def forget(writer: Writer, before: float) -> int:
    """Forget messages that were begun long ago and never came again."""
    table = schema.suspects
    old = (table.c.changed_at < before) & (table.c.put_aside == 0)
    return writer.conn.execute(sa.delete(table).where(old)).rowcount
