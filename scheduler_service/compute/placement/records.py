"""Records of allocations that only the placement service asks for.

Stateless, as :mod:`scheduler_service.store.claims.stage_records`, which has
what all stages share.

A :class:`ForgottenClaims` compares claims with their allocations: some were
deleted, or not noted. It belongs to the thread that follows the providers.
Its methods raise PlacementUnavailable or StoreUnavailable where the service
or our database does not answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.engine.ports import StageRecord
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import released_claims, stage_records
from scheduler_service.store.claims.stage_records import (
    IS_DUE,
    IS_HELD,
    RECORDS,
    CallEnd,
)
from scheduler_service.store.connection import Store, Writer

# The stage whose records these are.
STAGE = 'complete'
_TABLE = schema.stage_records
_MINE = _TABLE.c.stage == STAGE
LOG = logging.getLogger(__name__)
_SWEEP_S = 10.0
_SWEPT_AT_ONCE = 50
# A claim without a confirmation is checked after this time, in seconds.
_UNCONFIRMED_S = 60.0
# Likewise if its allocations may not be made: longer than any call takes.
_UNMARKED_S = 300.0
# A daemon that lives records made allocations within this time, in seconds.
MARKED_S = 0.4


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


def made_before(
    conn: Connection, host_ids: Sequence[int], before: float
) -> tuple[dict[int, list[str]], set[int]]:
    """Return the instances whose allocations were made before, by host id.

    :param before: time by the database's clock
    :return: beside them, the ids of hosts that have other records: of calls
        that may end just now, and of released claims
    """
    by_host: dict[int, list[str]] = {}
    others: set[int] = set()
    column = _TABLE.c.host_id
    counts = sa.and_(_TABLE.c.made_at <= before, IS_HELD)
    query = sa.select(column, _TABLE.c.instance_uuid, counts).where(_MINE)
    for host_id, uuid, is_counted in rows.select_in(
        conn, query, column, host_ids
    ):
        if is_counted:
            by_host.setdefault(host_id, []).append(uuid)
        else:
            others.add(host_id)
    return by_host, others


class ForgottenClaims:
    """Finds claims without allocations, and allocations without a record."""

    def __init__(
        self, store: Store, client: PlacementClient, health: Health
    ) -> None:
        self._store = store
        self._client = client
        self._health = health
        self._swept_at = -1e9

    def sweep(self) -> None:
        """Release such claims, now and then."""
        if time.monotonic() - self._swept_at > _SWEEP_S:
            self.release_forgotten()
            self._swept_at = time.monotonic()

    def _each(
        self,
        records: Iterable[StageRecord],
        work: Callable[[StageRecord], object],
    ) -> None:
        """Call *work* with each record; a failure does not stop others.

        :raises PlacementUnavailable: the service does not answer at all
        """
        for record in records:
            try:
                work(record)
            except errors.StoreUnavailable:
                raise
            except Exception as fault:
                self._postpone(record)
                _log_later(record.instance_uuid, fault)
                if _is_unanswered(fault):
                    raise

    def _postpone(self, record: StageRecord) -> None:
        self._store.write(
            lambda writer: stage_records.postpone(writer.conn, record)
        )

    def release_forgotten(self) -> None:
        """Release claims whose allocations the compute service deleted.

        The compute service does so for an instance that could not be built.
        Records stay until certainly no allocation is left.
        """
        with self._store.reading() as conn:
            forgotten = unconfirmed(conn, _UNCONFIRMED_S, _SWEPT_AT_ONCE)
            not_marked = unmarked(conn, _UNMARKED_S, _SWEPT_AT_ONCE)
        self._each([*forgotten, *not_marked], self._look)

    def release_forgotten_on(self, host_ids: Sequence[int]) -> None:
        """Release such claims on some hosts, however young they are."""
        with self._store.reading() as conn:
            forgotten = unconfirmed(conn, 0.0, _SWEPT_AT_ONCE, host_ids)
        self._each(forgotten, self._look)

    def mark_made(self, host_ids: Sequence[int] | None = None) -> None:
        """Record what was made, though no daemon recorded the call's end.

        It was killed just then, or the database was away.

        :param host_ids: on these hosts; None: on any
        """
        under_way = self._client.under_way()
        with self._store.reading() as conn:
            not_marked = unmarked(conn, MARKED_S, _SWEPT_AT_ONCE, host_ids)
        self._each(
            [
                each
                for each in not_marked
                if each.instance_uuid not in under_way
            ],
            self._mark,
        )

    def _has_allocations(self, record: StageRecord) -> bool:
        held = self._client.allocations(record.instance_uuid)['allocations']
        return any(uuid in held for uuid in allocations(record))

    def _look(self, record: StageRecord) -> None:
        """Release a claim without allocations."""
        if self._has_allocations(record):
            self._postpone(record)
            return
        self._store.write(lambda writer: _release(writer, record))
        self._health.count('placement_claims_forgotten')

    def _mark(self, record: StageRecord) -> None:
        if self._has_allocations(record):
            claim = record.instance_uuid, record.host_uuid, record.document
            end = CallEnd(record.stage, [claim], True, False, time.monotonic())
            self._store.write(
                lambda writer: stage_records.end_calls(writer.conn, end)
            )


def _log_later(instance: str, fault: Exception) -> None:
    LOG.warning(
        'Allocations of instance %s are looked at later: %s', instance, fault
    )


def _is_unanswered(fault: Exception) -> bool:
    """Whether the placement service did not answer at all."""
    return (
        isinstance(fault, errors.PlacementUnavailable)
        and 'status' not in fault.facts
    )


def _release(writer: Writer, record: StageRecord) -> None:
    """Release the claim of a record: of a move, or of a present place."""
    hosts = schema.hosts.c
    place = writer.conn.execute(
        sa.select(hosts.host, hosts.node).where(hosts.id == record.host_id)
    ).first()
    if place is None:
        return
    places = {record.instance_uuid: (place.host, place.node)}
    if not released_claims.give_up(writer, places, moves=True, final=True):
        released_claims.give_up(writer, places, moves=False, final=True)
