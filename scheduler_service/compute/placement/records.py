"""Records of allocations that only the placement service asks for.

Stateless, as :mod:`scheduler_service.store.claims.stage_records`, which has
what all stages share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.engine.ports import StageRecord
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import stage_records
from scheduler_service.store.claims.stage_records import (
    IS_DUE,
    IS_HELD,
    RECORDS,
)

# The stage whose records these are.
STAGE = 'complete'
_TABLE = schema.stage_records
_MINE = _TABLE.c.stage == STAGE


def allocations(record: StageRecord) -> dict[str, dict[str, int]]:
    """Return what a record says: provider uuid -> resource class -> amount.

    Its document is the amounts of the host's own provider, or allocations of
    several providers and their mappings.
    """
    document = record.content
    if 'allocations' not in document:
        return {record.host_uuid: document}
    return {
        uuid: provider['resources']
        for uuid, provider in document['allocations'].items()
    }


def replace(
    conn: Connection, instance: str, host: str, document: Mapping[str, Any]
) -> None:
    """Record other allocations for a claim, of which none were made.

    :param host: uuid of the host
    """
    host_id = sa.select(schema.hosts.c.id).where(schema.hosts.c.uuid == host)
    conn.execute(
        sa.update(_TABLE)
        .where(
            _MINE,
            _TABLE.c.instance_uuid == instance,
            _TABLE.c.host_id.in_(host_id),
        )
        .values(document=rows.document(document))
    )


def unconfirmed(
    conn: Connection,
    older_than: float,
    limit: int,
    host_ids: Sequence[int] | None = None,
) -> list[StageRecord]:
    """Return records whose allocations were made long ago, oldest first.

    Only records that are due for a check: see
    :func:`stage_records.postpone`.

    :param older_than: seconds, by the database's clock
    :param host_ids: on these hosts; None: on any
    """
    made_at = _TABLE.c.made_at
    query = RECORDS.where(
        _MINE, made_at < clock.read(conn) - older_than, IS_HELD, IS_DUE
    )
    if host_ids is not None:
        query = query.where(_TABLE.c.host_id.in_(host_ids))
    return stage_records.read(conn, query.order_by(made_at).limit(limit))


def unmarked(
    conn: Connection,
    older_than: float,
    limit: int,
    host_ids: Sequence[int] | None = None,
) -> list[StageRecord]:
    """Return records of claims whose calls have no recorded end.

    A daemon died before it recorded that their allocations were made. Only
    records that are due for a check: see
    :func:`stage_records.postpone`.

    :param older_than: seconds since the call began, or else since the claim,
        by the database's clock
    :param host_ids: on these hosts; None: on any
    """
    placed, moving = schema.instances, schema.moves
    before = clock.read(conn) - older_than
    began_at = sa.func.coalesce(
        _TABLE.c.asked_at, moving.c.created_at, placed.c.created_at
    )
    query = (
        RECORDS.outerjoin(placed, placed.c.uuid == _TABLE.c.instance_uuid)
        .outerjoin(
            moving,
            (moving.c.instance_uuid == _TABLE.c.instance_uuid)
            & (moving.c.host_id == _TABLE.c.host_id),
        )
        .where(
            _MINE,
            _TABLE.c.made_at.is_(None),
            began_at < before,
            IS_HELD,
            IS_DUE,
        )
    )
    if host_ids is not None:
        query = query.where(_TABLE.c.host_id.in_(host_ids))
    return stage_records.read(conn, query.limit(limit))


def has_unmarked(
    conn: Connection, host_ids: Sequence[int] | None = None
) -> bool:
    """Whether allocations are being made, or were and are not marked yet.

    :param host_ids: on these hosts; None: on any
    """
    under_way = _TABLE.c.asked_at > clock.NOW - 2 * stage_records.CALL_ENDS_S
    query = sa.select(_TABLE.c.host_id).where(
        _MINE, _TABLE.c.made_at.is_(None), under_way
    )
    if host_ids is not None:
        query = query.where(_TABLE.c.host_id.in_(host_ids))
    return conn.execute(query.limit(1)).first() is not None


Before = tuple[dict[int, list[str]], set[int]]


def made_before(
    conn: Connection, host_ids: Sequence[int], before: float
) -> Before:
    """Return the instances whose allocations were made before, by host id.

    :param before: time by the database's clock
    :return: beside them, the ids of hosts that have other records: of calls
        that may end just now, and of released claims
    """
    counts = sa.and_(_TABLE.c.made_at <= before, IS_HELD)
    query = sa.select(_TABLE.c.host_id, _TABLE.c.instance_uuid, counts)
    return _by_host(conn, query.where(_MINE), _TABLE.c.host_id, host_ids)


def taken_before(
    conn: Connection, host_ids: Sequence[int], before: float
) -> Before:
    """Return the same of claims of what another scheduler took.

    They have no records: allocations were there before them.
    """
    held, placed = schema.allocations, schema.instances
    query = sa.select(
        held.c.host_id, placed.c.uuid, placed.c.created_at <= before
    ).join(placed, placed.c.uuid == held.c.consumer_uuid)
    query = query.where(placed.c.state == 'claimed').distinct()
    return _by_host(conn, query, held.c.host_id, host_ids)


def _by_host(
    conn: Connection, query: Any, column: Any, host_ids: Sequence[int]
) -> Before:
    by_host: dict[int, list[str]] = {}
    others: set[int] = set()
    for host_id, uuid, counts in rows.select_in(conn, query, column, host_ids):
        if counts:
            by_host.setdefault(host_id, []).append(uuid)
        else:
            others.add(host_id)
    return by_host, others
