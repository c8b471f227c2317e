"""Undoes allocations that claims have in the placement service.

Calls are made outside transactions: the record is marked before a call and
gets the result afterwards; meanwhile no claim is made for the instance. Any
thread may use a :class:`PlacementUndoer`; a :class:`LeftClaims` belongs to the
thread that follows the providers. Their methods raise PlacementUnavailable or
StoreUnavailable where the service or our database does not answer: allocations
may then still be there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.placement import claims
from scheduler_service.compute.placement.claims import Undone
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from scheduler_service.store.claims import placement_records, released_claims
from scheduler_service.store.claims.placement_records import (
    Record,
    UndoAttempt,
)
from scheduler_service.store.connection import Store, Writer

LOG = logging.getLogger(__name__)
_SWEEP_S = 10.0
_SWEPT_AT_ONCE = 50
# A claim without a confirmation is checked after this time, in seconds.
_UNCONFIRMED_S = 60.0
# Likewise if its allocations may not be made: longer than any call takes.
_UNMARKED_S = 300.0
_THERE = {Undone.DONE: True, Undone.ABSENT: False, Undone.GAVE_UP: None}


class PlacementUndoer:
    """Undoes allocations by their records."""

    def __init__(
        self, store: Store, client: PlacementClient, health: Health
    ) -> None:
        self._store = store
        self._client = client
        self._health = health

    def undo_all(
        self, records: Sequence[Record], held: bool = False
    ) -> dict[str, Undone | Exception]:
        """Undo the allocations of records of different instances.

        :param held: whether the claims may be held: the caller gives them up
        :return: instance -> result or fault, without instances that another
            daemon claims for or undoes just now
        """

        def begin(writer: Writer) -> list[UndoAttempt]:
            begun = (
                placement_records.begin_undo(writer.conn, record, held)
                for record in records
            )
            return list(filter(None, begun))

        attempts = self._store.write(begin)
        if not attempts:
            return {}
        to_undo = [attempt.record for attempt in attempts]
        unsure: set[str] = set()
        results: dict[str, Undone | Exception] = {}
        try:
            results = claims.undo_all(self._client, to_undo, unsure)
        finally:
            self._end(attempts, results, unsure)
        return results

    def _end(
        self,
        attempts: Sequence[UndoAttempt],
        results: Mapping[str, Undone | Exception],
        unsure: Set[str],
    ) -> None:
        """Record the results of undoing, or that a later attempt is needed.

        :param unsure: instances for which a call may still take effect
        """

        def end(writer: Writer) -> None:
            for attempt in attempts:
                instance = attempt.record.instance_uuid
                result = results.get(instance)
                there = _THERE[result] if isinstance(result, Undone) else None
                placement_records.end_undo(
                    writer.conn, attempt, there, instance not in unsure
                )

        self._store.write(end)
        done = sum(result is Undone.DONE for result in results.values())
        if done:
            self._health.count('placement_claims_undone', by=done)

    def undo_left(self, instance: str) -> bool:
        """Undo the allocations of an instance's released claims.

        :return: whether there was any such claim
        """
        with self._store.reading() as conn:
            records = placement_records.released(conn, instance)
        for record in records:
            result = self.undo_all([record]).get(instance)
            if isinstance(result, Exception):
                raise result
        return bool(records)


class LeftClaims(PlacementUndoer):
    """Finds allocations without a claim, and claims without allocations."""

    _swept_at = -1e9

    def sweep(self) -> bool:
        """Undo allocations without a claim; now and then the reverse.

        :return: whether more records are to be undone now
        """
        with self._store.reading() as conn:
            records = placement_records.orphans(conn, _SWEPT_AT_ONCE)
        if records:
            self._undo(records)
        if time.monotonic() - self._swept_at > _SWEEP_S:
            self.release_forgotten()
            self._swept_at = time.monotonic()
        return len(records) == _SWEPT_AT_ONCE

    def _undo(self, records: Sequence[Record]) -> None:
        """Undo the allocations of records; a failure does not stop others.

        :raises PlacementUnavailable: the service does not answer
        """
        # Of several records of an instance, one in each sweep.
        alone = {record.instance_uuid: record for record in records}
        results = self.undo_all(list(alone.values()))
        faults = [
            (instance, result)
            for instance, result in results.items()
            if isinstance(result, Exception)
        ]
        for instance, fault in faults:
            _log_later(instance, fault)
        unanswered = [fault for _, fault in faults if _is_unanswered(fault)]
        if unanswered and len(unanswered) == len(results):
            raise unanswered[0]

    def _each(
        self, records: Iterable[Record], work: Callable[[Record], object]
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

    def _postpone(self, record: Record) -> None:
        self._store.write(
            lambda writer: placement_records.postpone(writer.conn, record)
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
        self._each(unconfirmed, self._look)
        self._each(unmarked, self._mark)

    def release_forgotten_on(self, host_ids: Sequence[int]) -> None:
        """Release such claims on some hosts, however young they are."""
        with self._store.reading() as conn:
            unconfirmed = placement_records.unconfirmed(
                conn, 0.0, _SWEPT_AT_ONCE, host_ids
            )
        self._each(unconfirmed, self._look)

    def _look(self, record: Record) -> bool:
        """Release a claim without allocations; return whether it has some."""
        held = self._client.allocations(record.instance_uuid)['allocations']
        if any(uuid in held for uuid in record.allocations):
            self._postpone(record)
            return True
        self._store.write(lambda writer: _release(writer, record))
        self._health.count('placement_claims_forgotten')
        return False

    def _mark(self, record: Record) -> None:
        if self._look(record):
            claim = record.instance_uuid, record.host_uuid, record.document
            self._store.write(
                lambda writer: placement_records.end_calls(
                    writer.conn, [claim], made=True, sure=False
                )
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


def _release(writer: Writer, record: Record) -> None:
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
