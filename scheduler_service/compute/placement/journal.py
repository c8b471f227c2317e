"""What is recorded of allocations: that they are to be made, and were made.

A :class:`PlacementJournal` belongs to one thread. That allocations are to be
made is in the store before they are; how the calls ended goes with the next
transaction, or a moment later with one of its own.
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
    wanted: Sequence[AllocationRequest]
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

    def intend(self, wanted: Sequence[AllocationRequest], fresh: bool) -> None:
        """Record that allocations are to be made.

        :param fresh: whether there is no earlier record of them, as a rule
        :raises BeingUndone: an earlier claim is not undone yet
        :raises StoreUnavailable: the database does not answer
        """
        claims = [
            (allocation.consumer, allocation.provider, allocation.record)
            for allocation in wanted
        ]
        ended = self._ended

        def write(writer: Writer) -> None:
            _mark(writer, ended)
            if fresh:
                placement_records.intend_new(writer.conn, claims)
            else:
                placement_records.intend(writer.conn, claims)

        for tries in range(1, _TRIES + 1):
            try:
                self._writer.write(write)
            except db_exception.DBDuplicateEntry:
                if tries == _TRIES:
                    raise
                # An earlier claim of an instance was not undone yet.
                fresh = False
            else:
                self._ended = []
                return

    def intend_patiently(
        self, wanted: Sequence[AllocationRequest], fresh: bool
    ) -> None:
        """Do it as :meth:`intend`, but wait while they are being undone.

        :raises PlacementUnavailable: for longer than that
        :raises StoreUnavailable: the database does not answer
        """
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.intend(wanted, fresh)
                return
            except BeingUndone as fault:
                if time.monotonic() > until:
                    raise errors.PlacementUnavailable(str(fault)) from fault
                time.sleep(_PAUSE_S)

    def recorded(self, wanted: AllocationRequest) -> Record | None:
        """Return the record of a claim; None: there is none.

        :raises StoreUnavailable: the database does not answer
        """
        return self._writer.write(
            lambda writer: placement_records.recorded(
                writer.conn, wanted.consumer, wanted.provider
            )
        )

    def replace(self, wanted: AllocationRequest) -> None:
        """Record other allocations for a claim, of which none were made.

        :raises StoreUnavailable: the database does not answer
        """
        self._writer.write(
            lambda writer: placement_records.replace(
                writer.conn, wanted.consumer, wanted.provider, wanted.record
            )
        )

    def made(self, wanted: Sequence[AllocationRequest]) -> None:
        """Have it recorded soon that allocations were made just now."""
        self._end(wanted, made=True)

    def not_made(self, wanted: Sequence[AllocationRequest]) -> None:
        """Have it recorded soon that calls ended, and made nothing."""
        self._end(wanted, made=False)

    def unanswered(self, wanted: Sequence[AllocationRequest]) -> None:
        """Have it recorded soon that calls ended without an answer."""
        self.unsure |= {allocation.consumer for allocation in wanted}
        self._end(wanted, made=False)

    def _end(self, wanted: Sequence[AllocationRequest], made: bool) -> None:
        now = time.monotonic()
        late = [
            allocation
            for allocation in wanted
            if allocation.consumer in self.unsure
        ]
        sure = [
            allocation
            for allocation in wanted
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

        Where that fails it stays unrecorded; whoever follows the providers
        finds it after some minutes.
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
    for allocation in ended:
        placement_records.answered(
            writer.conn,
            [(each.consumer, each.provider, each.record)
             for each in allocation.wanted],
            allocation.made,
            allocation.sure,
            time.monotonic() - allocation.at,
        )  # fmt: skip
