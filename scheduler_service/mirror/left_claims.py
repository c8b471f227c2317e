"""Undoes what claims that are held no more left in the placement service.

A :class:`LeftClaims` belongs to the thread that follows the providers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from scheduler_service.engine.health import Health
from scheduler_service.placement import claims
from scheduler_service.placement.client import PlacementClient
from scheduler_service.store.claims import lifecycle, placement_records
from scheduler_service.store.claims.placement_records import Record
from scheduler_service.store.connection import Store, Writer

_SWEEP_S = 10.0
_SWEPT_AT_ONCE = 50
# A claim without a confirmation is looked at after this time, in seconds.
_UNCONFIRMED_S = 60.0
# Likewise if its allocations may not be made: longer than any call takes.
_UNMARKED_S = 300.0


class LeftClaims:
    """Looks for claims and allocations of which the other half is gone."""

    def __init__(
        self, store: Store, client: PlacementClient, health: Health
    ) -> None:
        self._store = store
        self._client = client
        self._health = health
        self._swept_at = -1e9

    def sweep(self) -> None:
        """Undo allocations without a claim; now and then the reverse.

        :raises PlacementUnavailable: the service does not answer
        :raises StoreUnavailable: our database does not answer
        """
        self._undo_orphans()
        if time.monotonic() - self._swept_at > _SWEEP_S:
            self.release_forgotten()
            self._swept_at = time.monotonic()

    def _undo_orphans(self) -> None:
        """Undo the allocations of claims that were released."""
        with self._store.reading() as conn:
            found = placement_records.orphans(conn, _SWEPT_AT_ONCE)
        for record in found:
            self._undo_orphan(record)

    def _undo_orphan(self, record: Record) -> None:
        def work(writer: Writer) -> bool:
            # The call is inside the transaction: whoever claims the same
            # again waits for the row, and so for the end of it.
            if not placement_records.take_orphan(writer.conn, record):
                return False
            return claims.undo(
                self._client, record.instance_uuid, record.allocations
            )

        if self._store.write(work):
            self._health.count('placement_claims_undone')

    def release_forgotten(self) -> None:
        """Release claims whose allocations the compute service deleted.

        It does so for an instance that could not be built.
        """
        with self._store.reading() as conn:
            found = placement_records.unconfirmed(
                conn, _UNCONFIRMED_S, _SWEPT_AT_ONCE
            )
            unmarked = placement_records.unmarked(
                conn, _UNMARKED_S, _SWEPT_AT_ONCE
            )
        gone = [one for one in (*found, *unmarked) if not self._is_held(one)]
        uuids = [record.instance_uuid for record in gone]
        self._mark_made([one for one in unmarked if one not in gone])
        if not gone:
            return

        def work(writer: Writer) -> None:
            lifecycle.drop_moves(writer, uuids)
            lifecycle.release(writer, uuids)
            placement_records.forget(writer.conn, uuids)

        self._store.write(work)
        self._health.count('placement_claims_forgotten', by=len(gone))

    def _is_held(self, record: Record) -> bool:
        """Whether an instance has allocations of a claim's providers."""
        held = self._client.allocations(record.instance_uuid)['allocations']
        return any(uuid in held for uuid in record.allocations)

    def _mark_made(self, records: Sequence[Record]) -> None:
        if records:
            self._store.write(
                lambda writer: placement_records.mark_made(
                    writer.conn,
                    [one.instance_uuid for one in records],
                    {one.host_uuid for one in records},
                )
            )
