"""Undoes allocations in the placement service that a record says are ours.

Nothing is called inside a transaction: that they are being undone is in the
record before, and what it came to afterwards. Meanwhile nobody claims for the
instance. Any thread may use a :class:`PlacementUndoer`; a :class:`LeftClaims`
belongs to the thread that follows the providers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent import futures

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.placement import claims
from scheduler_service.compute.placement.claims import Undone
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from scheduler_service.store.claims import placement_records, released_claims
from scheduler_service.store.claims.placement_records import Record, Taken
from scheduler_service.store.connection import Store, Writer

LOG = logging.getLogger(__name__)
_SWEEP_S = 10.0
_SWEPT_AT_ONCE = 50
# So many are undone at a time.
_THREADS = 4
# After so many calls in a row without an answer the service is away.
_UNANSWERED = 3
# A claim without a confirmation is looked at after this time, in seconds.
_UNCONFIRMED_S = 60.0
# Likewise if its allocations may not be made: longer than any call takes.
_UNMARKED_S = 300.0
_THERE = {Undone.DONE: True, Undone.ABSENT: False, Undone.GAVE_UP: None}


class PlacementUndoer:
    """Undoes allocations, one record at a time."""

    def __init__(
        self, store: Store, client: PlacementClient, health: Health
    ) -> None:
        self._store = store
        self._client = client
        self._health = health

    def undo(self, record: Record, held: bool = False) -> Undone | None:
        """Undo what a record says, if it is there.

        :param held: whether the claim may be held: the caller gives it up
        :return: None: the claim is held, or others undo it just now
        :raises PlacementUnavailable: it may still be there
        :raises StoreUnavailable: our database does not answer
        """
        taken = self._store.write(
            lambda writer: placement_records.take(writer.conn, record, held)
        )
        if taken is None:
            return None
        unsure: set[str] = set()
        try:
            found = claims.undo(
                self._client,
                record.instance_uuid,
                record.host_uuid,
                record.allocations,
                unsure,
            )
        except Exception:
            self._give_back(taken, None, sure=not unsure)
            raise
        self._give_back(taken, _THERE[found], sure=not unsure)
        if found is Undone.DONE:
            self._health.count('placement_claims_undone')
        return found

    def _give_back(self, taken: Taken, there: bool | None, sure: bool) -> None:
        self._store.write(
            lambda writer: placement_records.give_back(
                writer.conn, taken, there, sure
            )
        )

    def undo_left(self, instance: str) -> bool:
        """Undo what claims of an instance left that are held no more.

        :return: whether there was any such claim
        :raises PlacementUnavailable: something may still be there
        :raises StoreUnavailable: our database does not answer
        """
        with self._store.reading() as conn:
            found = placement_records.left(conn, instance)
        for record in found:
            self.undo(record)
        return bool(found)


class LeftClaims:
    """Looks for claims and allocations of which the other half is gone."""

    def __init__(
        self, store: Store, client: PlacementClient, health: Health
    ) -> None:
        self._store = store
        self._client = client
        self._health = health
        self._undoer = PlacementUndoer(store, client, health)
        self._swept_at = -1e9

    def sweep(self) -> None:
        """Undo allocations without a claim; now and then the reverse.

        :raises PlacementUnavailable: the service does not answer
        :raises StoreUnavailable: our database does not answer
        """
        with self._store.reading() as conn:
            found = placement_records.orphans(conn, _SWEPT_AT_ONCE)
        self._each(found, self._undoer.undo)
        if time.monotonic() - self._swept_at > _SWEEP_S:
            self.release_forgotten()
            self._swept_at = time.monotonic()

    def _each(
        self, records: Iterable[Record], work: Callable[[Record], object]
    ) -> None:
        """Do something with records; one that is odd stops no other.

        :raises PlacementUnavailable: the service does not answer, for one
            after the other; they are looked at later
        """
        unanswered = 0
        with futures.ThreadPoolExecutor(_THREADS) as pool:
            for fault in pool.map(lambda one: self._try(work, one), records):
                if fault is None:
                    unanswered = 0
                elif isinstance(fault, errors.PlacementUnavailable):
                    unanswered += 'status' not in fault.facts
                    if unanswered >= _UNANSWERED:
                        raise fault

    def _try(
        self, work: Callable[[Record], object], record: Record
    ) -> Exception | None:
        """Do something with a record; return why it is looked at later."""
        try:
            work(record)
        except errors.StoreUnavailable:
            raise
        except Exception as fault:
            self._postpone(record)
            LOG.warning(
                'Allocations of instance %s are looked at later: %s',
                record.instance_uuid,
                fault,
            )
            return fault
        return None

    def _postpone(self, record: Record) -> None:
        self._store.write(
            lambda writer: placement_records.postpone(writer.conn, record)
        )

    def release_forgotten(self) -> None:
        """Release claims whose allocations the compute service deleted.

        It does so for an instance that could not be built. Their records
        stay until it is sure that nothing is left.

        :raises PlacementUnavailable: the service does not answer
        :raises StoreUnavailable: our database does not answer
        """
        with self._store.reading() as conn:
            found = placement_records.unconfirmed(
                conn, _UNCONFIRMED_S, _SWEPT_AT_ONCE
            )
            unmarked = placement_records.unmarked(
                conn, _UNMARKED_S, _SWEPT_AT_ONCE
            )
        self._each(found, self._look)
        self._each(unmarked, self._mark)

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
                lambda writer: placement_records.answered(
                    writer.conn, [claim], made=True, sure=False
                )
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
