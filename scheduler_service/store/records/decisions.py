"""Decisions with their reasons, kept so that they can be explained later.

Stateless: any thread may call it with a connection of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import rows, schema
from scheduler_service.store.connection import Writer

_encode = msgspec.json.Encoder().encode
_COLUMNS = {
    'request_id': 'text',
    'kind': 'text',
    'outcome': 'text',
    'document': 'text',
    'caller_request_id': 'text',
    'global_request_id': 'text',
}


class Decision(NamedTuple):
    """The result of one request, and its reasons.

    :ivar kind: ``select_destinations`` or ``schedule_zone``
    :ivar outcome: ``chosen``, or the name of the error
    :ivar document: JSON, the reasons
    :ivar caller_request_id: the id of the request in the caller's log, where
        that is another one
    :ivar global_request_id: the id of the request in the logs of all services
        that it went through; None: it has none
    """

    request_id: str
    kind: str
    outcome: str
    document: str
    caller_request_id: str | None = None
    global_request_id: str | None = None

    @classmethod
    def of(
        cls,
        request_id: str | None,
        kind: str,
        outcome: str,
        reasons: Any,
        caller_request_id: str | None = None,
        global_request_id: str | None = None,
    ) -> Decision:
        """Return a decision with its reasons encoded.

        :param reasons: a mapping that JSON can represent
        """
        return cls(
            str(request_id),
            kind,
            outcome,
            _encode(reasons).decode(),
            caller_request_id,
            global_request_id,
        )


def record(writer: Writer, decisions: Sequence[Decision]) -> None:
    """Insert decisions."""
    rows.insert_packed(
        writer.conn, 'decisions', _COLUMNS, decisions, 'created_at'
    )


def prune(writer: Writer, keep: int, most: int) -> int:
    """Delete decisions beyond the newest *keep*, the oldest first.

    :param most: how many at most; fewer where ids have gaps
    :return: how many were deleted; 0: there are no more
    """
    table = schema.decisions
    ends = sa.select(sa.func.min(table.c.id), sa.func.max(table.c.id))
    oldest, newest = writer.conn.execute(ends).one()
    last = min((newest or 0) - keep, (oldest or 0) + most - 1)
    return writer.conn.execute(
        sa.delete(table).where(table.c.id <= last)
    ).rowcount


def purge(writer: Writer, before: float, most: int) -> int:
    """Delete decisions that were made before a time, the oldest first.

    :param before: by the database's clock, in seconds since the epoch
    :param most: how many at most
    :return: how many were deleted; fewer than *most*: there are no more
    """
    table = schema.decisions
    # By id, since they are not indexed by time: the oldest come first.
    query = (
        sa.select(table.c.id, table.c.created_at)
        .order_by(table.c.id)
        .limit(most)
    )
    old = [
        number
        for number, made_at in writer.conn.execute(query)
        if made_at < before
    ]
    if old:
        writer.conn.execute(
            sa.delete(table).where(
                table.c.id.between(old[0], old[-1]),
                table.c.created_at < before,
            )
        )
    return len(old)


def listing(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Return the newest decisions, newest first, without the reasons."""
    table = schema.decisions
    query = (
        sa.select(
            table.c.created_at,
            table.c.request_id,
            table.c.kind,
            table.c.outcome,
        )
        .order_by(table.c.id.desc())
        .limit(limit)
    )
    return [dict(row._mapping) for row in conn.execute(query)]


def show(conn: Connection, request_id: str) -> list[dict[str, Any]]:
    """Return the decisions of a request id with their reasons, oldest first.

    :param request_id: ours, the caller's, or the global one
    :raises DecisionNotFound: no decision of this request is kept
    """
    table = schema.decisions
    query = (
        sa.select(table)
        .where(
            sa.or_(
                table.c.request_id == request_id,
                table.c.caller_request_id == request_id,
                table.c.global_request_id == request_id,
            )
        )
        .order_by(table.c.id)
    )
    found = [
        {
            'created_at': row.created_at,
            'request_id': row.request_id,
            'kind': row.kind,
            'outcome': row.outcome,
            'caller_request_id': row.caller_request_id,
            'global_request_id': row.global_request_id,
            **msgspec.json.decode(row.document),
        }
        for row in conn.execute(query)
    ]
    if not found:
        raise errors.DecisionNotFound(request_id=request_id)
    return found
