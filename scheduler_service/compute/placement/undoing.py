"""Undoes allocations in the placement service that a record says are ours.

Nothing is called inside a transaction: that they are being undone is in the
record before, and what it came to afterwards. Meanwhile nobody claims for the
instance. Stateless but for the clients: any thread may use it.
"""

from __future__ import annotations

from scheduler_service.compute.placement import claims
from scheduler_service.compute.placement.claims import Undone
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.store.claims import placement_records
from scheduler_service.store.claims.placement_records import Record, Taken
from scheduler_service.store.connection import Store

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
