"""Compares claims with their allocations: some were deleted, or not noted.

A :class:`ForgottenClaims` belongs to the thread that follows the providers.
Its methods raise PlacementUnavailable or StoreUnavailable where the service or
our database does not answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.placement import records as placement_records
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.engine.ports import StageRecord
from scheduler_service.store import schema
from scheduler_service.store.claims import released_claims, stage_records
from scheduler_service.store.claims.stage_records import CallEnd
from scheduler_service.store.connection import Store, Writer

LOG = logging.getLogger(__name__)
_SWEEP_S = 10.0
_SWEPT_AT_ONCE = 50
# A claim without a confirmation is checked after this time, in seconds.
_UNCONFIRMED_S = 60.0
# Likewise if its allocations may not be made: longer than any call takes.
_UNMARKED_S = 300.0
# A daemon that lives records made allocations within this time, in seconds.
MARKED_S = 0.4


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
            unconfirmed = placement_records.unconfirmed(
                conn, _UNCONFIRMED_S, _SWEPT_AT_ONCE
            )
            unmarked = placement_records.unmarked(
                conn, _UNMARKED_S, _SWEPT_AT_ONCE
            )
        self._each([*unconfirmed, *unmarked], self._look)

    def release_forgotten_on(self, host_ids: Sequence[int]) -> None:
        """Release such claims on some hosts, however young they are."""
        with self._store.reading() as conn:
            unconfirmed = placement_records.unconfirmed(
                conn, 0.0, _SWEPT_AT_ONCE, host_ids
            )
        self._each(unconfirmed, self._look)

    def mark_made(self, host_ids: Sequence[int] | None = None) -> None:
        """Record what was made, though no daemon recorded the call's end.

        It was killed just then, or the database was away.

        :param host_ids: on these hosts; None: on any
        """
        under_way = self._client.under_way()
        with self._store.reading() as conn:
            unmarked = placement_records.unmarked(
                conn, MARKED_S, _SWEPT_AT_ONCE, host_ids
            )
        self._each(
            [each for each in unmarked if each.instance_uuid not in under_way],
            self._mark,
        )

    def _has_allocations(self, record: StageRecord) -> bool:
        held = self._client.allocations(record.instance_uuid)['allocations']
        return any(
            uuid in held for uuid in placement_records.allocations(record)
        )

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
