"""What is recorded of allocations: that they are to be made, and were made.

A :class:`PlacementJournal` belongs to one thread. That allocations are to be
made is in the store before they are; that they were made goes with the next
transaction, or a moment later with one of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.placement.claims import Wanted
from scheduler_service.store.claims import placement_records
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.kept_writer import KeptWriter

LOG = logging.getLogger(__name__)
_TRIES = 3


class PlacementJournal:
    """Writes records of allocations on a connection of its own."""

    def __init__(self, store: Store) -> None:
        self._writer = KeptWriter(store)
        # What was made by a call, and the monotonic time of its end.
        self._made: list[tuple[float, Sequence[Wanted]]] = []

    @property
    def has_pending(self) -> bool:
        """Whether something that was made is not recorded yet."""
        return bool(self._made)

    def intend(self, wanted: Sequence[Wanted], fresh: bool) -> None:
        """Record that allocations are to be made.

        :param fresh: whether there is no earlier record of them, as a rule
        :raises StoreUnavailable: the database does not answer
        """
        claims = [(one.consumer, one.provider, one.record) for one in wanted]
        made = self._made

        def write(writer: Writer) -> None:
            _mark(writer, made)
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
                self._made = []
                return

    def recorded(self, wanted: Wanted) -> dict[str, Any] | None:
        """Return the record of a claim; None: there is none.

        :raises StoreUnavailable: the database does not answer
        """
        return self._writer.write(
            lambda writer: placement_records.recorded(
                writer.conn, wanted.consumer, wanted.provider
            )
        )

    def replace(self, wanted: Wanted) -> None:
        """Record other allocations for a claim, of which none were made.

        :raises StoreUnavailable: the database does not answer
        """
        self._writer.write(
            lambda writer: placement_records.replace(
                writer.conn, wanted.consumer, wanted.provider, wanted.record
            )
        )

    def made(self, wanted: Sequence[Wanted]) -> None:
        """Have it recorded soon that allocations were made just now."""
        if wanted:
            self._made.append((time.monotonic(), wanted))

    def flush(self) -> None:
        """Record what was made.

        Where that fails it stays unrecorded; whoever follows the providers
        finds it after some minutes.
        """
        made, self._made = self._made, []
        try:
            self._writer.write(lambda writer: _mark(writer, made))
        except errors.StoreUnavailable:
            LOG.debug(
                'What was made could not be recorded: %d calls', len(made)
            )

    def forget(self, instances: Sequence[str]) -> None:
        """Forget the records of instances, whose allocations are undone.

        :raises StoreUnavailable: the database does not answer
        """
        self._writer.write(
            lambda writer: placement_records.forget(writer.conn, instances)
        )

    def close(self) -> None:
        """Record what was made, and close the connection."""
        if self._made:
            self.flush()
        self._writer.close()


def _mark(
    writer: Writer, made: Sequence[tuple[float, Sequence[Wanted]]]
) -> None:
    for at, wanted in made:
        placement_records.mark_made(
            writer.conn,
            [one.consumer for one in wanted],
            {one.provider for one in wanted},
            time.monotonic() - at,
        )
