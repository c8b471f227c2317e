"""Records of allocations in the store: intended, then made or not made.

A :class:`PlacementJournal` belongs to one thread. The intent of a first claim
is committed with the claim, any other before the call; the end of the call
goes with the next transaction, or a moment later with one of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.compute.placement.claims import AllocationRequest
from scheduler_service.store.claims import placement_records
from scheduler_service.store.claims.placement_records import (
    BeingUndone,
    Record,
)
from scheduler_service.store.connection import (
    PersistentWriter,
    Store,
    Writer,
)

LOG = logging.getLogger(__name__)
_TRIES = 3
# For how long a claim waits until an earlier one is undone, in seconds.
_PATIENCE_S = 5.0
_PAUSE_S = 0.1


class _Ended(NamedTuple):
    """Calls that ended together, at a monotonic time.

    :ivar sure: whether each was answered
    """

    at: float
    allocations: Sequence[AllocationRequest]
    made: bool
    sure: bool


class PlacementJournal:
    """Writes records of allocations on a connection of its own."""

    def __init__(self, store: Store) -> None:
        self._writer = PersistentWriter(store)
        self._ended: list[_Ended] = []
        # Consumers of calls without an answer, until their end is recorded.
        self.unsure: set[str] = set()

    @property
    def has_pending(self) -> bool:
        """Whether the end of a call is not recorded yet."""
        return bool(self._ended)

    def intend(self, allocations: Sequence[AllocationRequest]) -> None:
        """Record that allocations are to be made, or may be there already.

        :raises BeingUndone: an earlier claim is not undone yet
        :raises StoreUnavailable: the database does not answer
        """
        claims = [
            (allocation.consumer, allocation.provider, allocation.record)
            for allocation in allocations
        ]
        ended = self._ended

        def write(writer: Writer) -> None:
            _mark(writer, ended)
            placement_records.intend(writer.conn, claims)

        for tries in range(1, _TRIES + 1):
            try:
                self._writer.write(write)
            except db_exception.DBDuplicateEntry:
                # Another daemon recorded the same at this moment.
                if tries == _TRIES:
                    raise
            else:
                self._ended = []
                return

    def intend_patiently(
        self, allocations: Sequence[AllocationRequest]
    ) -> None:
        """Call :meth:`intend` again while an earlier claim is being undone.

        :raises PlacementUnavailable: undoing takes too long
        :raises StoreUnavailable: the database does not answer
        """
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.intend(allocations)
                return
            except BeingUndone as fault:
                if time.monotonic() > until:
                    raise errors.PlacementUnavailable(str(fault)) from fault
                time.sleep(_PAUSE_S)

    def recorded(self, allocation: AllocationRequest) -> Record | None:
        """Return the record of a claim; None: there is none.

        :raises StoreUnavailable: the database does not answer
        """
        return self._writer.write(
            lambda writer: placement_records.recorded(
                writer.conn, allocation.consumer, allocation.provider
            )
        )

    def replace(self, allocation: AllocationRequest) -> None:
        """Record other allocations for a claim, of which none were made.

        :raises StoreUnavailable: the database does not answer
        """
        self._writer.write(
            lambda writer: placement_records.replace(
                writer.conn,
                allocation.consumer,
                allocation.provider,
                allocation.record,
            )
        )

    def made(self, allocations: Sequence[AllocationRequest]) -> None:
        """Note that allocations were made; recorded soon."""
        self._end(allocations, made=True)

    def not_made(self, allocations: Sequence[AllocationRequest]) -> None:
        """Note that calls ended without allocations; recorded soon."""
        self._end(allocations, made=False)

    def unanswered(self, allocations: Sequence[AllocationRequest]) -> None:
        """Note that calls ended without an answer; recorded soon."""
        self.unsure |= {allocation.consumer for allocation in allocations}
        self._end(allocations, made=False)

    def _end(
        self, allocations: Sequence[AllocationRequest], made: bool
    ) -> None:
        now = time.monotonic()
        late = [
            allocation
            for allocation in allocations
            if allocation.consumer in self.unsure
        ]
        sure = [
            allocation
            for allocation in allocations
            if allocation.consumer not in self.unsure
        ]
        self.unsure -= {allocation.consumer for allocation in late}
        self._ended += [
            _Ended(now, part, made, part is sure)
            for part in (late, sure)
            if part
        ]

    def flush(self) -> None:
        """Record which calls ended.

        Where the database does not answer, the ends are dropped: the
        follower of the providers looks the allocations up some minutes later.
        """
        ended, self._ended = self._ended, []
        try:
            self._writer.write(lambda writer: _mark(writer, ended))
        except errors.StoreUnavailable:
            LOG.debug('The ends of %d calls are not recorded', len(ended))

    def close(self) -> None:
        """Record which calls ended, and close the connection."""
        if self._ended:
            self.flush()
        self._writer.close()


def _mark(writer: Writer, ended: Sequence[_Ended]) -> None:
    for call in ended:
        placement_records.answered(
            writer.conn,
            [(allocation.consumer, allocation.provider, allocation.record)
             for allocation in call.allocations],
            call.made,
            call.sure,
            time.monotonic() - call.at,
        )  # fmt: skip
