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


def prune(writer: Writer, keep: int) -> None:
    """Delete all decisions but the newest *keep*."""
    table = schema.decisions
    newest = writer.conn.execute(
        sa.select(sa.func.max(table.c.id))
    ).scalar_one()
    old = table.c.id <= (newest or 0) - keep
    writer.conn.execute(sa.delete(table).where(old))


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
