"""Records of allocations in the store: intended, then made or not made.

A :class:`PlacementJournal` belongs to one thread. The intent of a first claim
is committed with the claim, any other before the call; the end of the call
goes with the next transaction, or a moment later with one of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.compute.placement import records as placement_records
from scheduler_service.compute.placement.claims import AllocationRequest
from scheduler_service.engine.ports import Intent, StageRecord
from scheduler_service.store import rows
from scheduler_service.store.claims import stage_records
from scheduler_service.store.claims.stage_records import BeingUndone, CallEnd
from scheduler_service.store.connection import (
    PersistentWriter,
    Store,
    Writer,
)

# The end of a call is recorded after this time, in seconds: also under load,
# where there is always a next call.
_RECORD_S = 0.2
# Pause between tries while the database is away, in seconds.
_AWAY_S = 0.5


class PlacementJournal:
    """Writes records of allocations on a connection of its own.

    Its methods raise StoreUnavailable where the database does not answer.

    :ivar ended: calls of which the end is not recorded yet
    :ivar unsure: consumers of calls without an answer, until their end is
    :ivar refusals: consumer -> why the service refused its last call
    """

    def __init__(self, store: Store) -> None:
        self._writer = PersistentWriter(store)
        self.ended: list[CallEnd] = []
        self.unsure: set[str] = set()
        self.refusals: dict[str, str] = {}

    def intend(self, allocations: Sequence[AllocationRequest]) -> None:
        """Record that allocations are to be made, or may be there already.

        Waits a while for an earlier claim that is being undone.

        :raises PlacementUnavailable: undoing takes too long
        """

        def write(writer: Writer) -> None:
            stage_records.end_all(writer.conn, self.ended)
            stage_records.intend(
                writer.conn, placement_records.STAGE, _claims(allocations)
            )

        try:
            stage_records.intend_patiently(lambda: self._writer.write(write))
        except BeingUndone as fault:
            raise errors.PlacementUnavailable(str(fault)) from fault
        self.ended = []

    def recorded(self, allocation: AllocationRequest) -> StageRecord | None:
        """Return the record of a claim; None: there is none."""
        return self._writer.write(
            lambda writer: stage_records.recorded(
                writer.conn,
                placement_records.STAGE,
                allocation.consumer,
                allocation.provider,
            )
        )

    def replace(self, allocation: AllocationRequest) -> None:
        """Record other allocations for a claim, of which none were made."""
        self._writer.write(
            lambda writer: placement_records.replace(
                writer.conn,
                allocation.consumer,
                allocation.provider,
                allocation.record,
            )
        )

    def unanswered(self, allocations: Sequence[AllocationRequest]) -> None:
        """Note that calls ended without an answer; recorded soon."""
        self.unsure |= {allocation.consumer for allocation in allocations}
        self.end(allocations, made=False)

    def end(
        self, allocations: Sequence[AllocationRequest], made: bool
    ) -> None:
        """Note that calls ended; recorded soon.

        :param made: whether the allocations were made
        """
        now, unsure = time.monotonic(), self.unsure
        late = [each for each in allocations if each.consumer in unsure]
        sure = [each for each in allocations if each.consumer not in unsure]
        self.unsure = unsure - {each.consumer for each in late}
        self.ended += [
            CallEnd(placement_records.STAGE, _claims(each), made, is_sure, now)
            for each, is_sure in ((late, False), (sure, True))
            if each
        ]

    def flush_due(self) -> float | None:
        """Record which calls ended, if the first of them did a while ago.

        :return: seconds until this is due; None: no end is unrecorded
        """
        if not self.ended:
            return None
        left_s = self.ended[0].at + _RECORD_S - time.monotonic()
        if left_s > 0:
            return left_s
        self.flush()
        return _AWAY_S if self.ended else None

    def flush(self) -> None:
        """Record which calls ended; later where the database is away."""
        ended, self.ended = self.ended, []
        try:
            self._writer.write(
                lambda writer: stage_records.end_all(writer.conn, ended)
            )
        except errors.StoreUnavailable:
            self.ended = ended[-stage_records.MOST_KEPT :]

    def close(self) -> None:
        """Record which calls ended, and close the connection."""
        if self.ended:
            self.flush()
        self._writer.drop()


def _claims(allocations: Sequence[AllocationRequest]) -> list[Intent]:
    return [
        (
            allocation.consumer,
            allocation.provider,
            rows.document(allocation.record),
        )
        for allocation in allocations
    ]
