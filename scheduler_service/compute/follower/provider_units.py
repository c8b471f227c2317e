"""What one instance may take of a provider's resource classes at a time.

No call gives it for all providers, so it is read one by one, a few at a time,
and kept: it changes with the hardware alone, and then the host is read anyway.
A :class:`ProviderUnits` belongs to the thread that follows the providers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from scheduler_service.compute.placement.client import (
    UNBOUNDED,
    PlacementClient,
    Units,
)
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.reading.loading import MAX_UNIT

# So many are read in a turn, of which there is one each second at most: some
# hundredths of what the service can do.
_AT_ONCE = 2
_TURN_S = 1.0


class ProviderUnits:
    """The bounds of providers by uuid, as far as they are known."""

    def __init__(self, store: Store, client: PlacementClient) -> None:
        self._store = store
        self._client = client
        self._known: dict[str, Mapping[str, Units]] = {}
        # Many providers are alike, and share one mapping.
        self._distinct: dict[
            tuple[tuple[str, Units], ...], Mapping[str, Units]
        ] = {}
        self._unknown: list[str] = []
        self._read_at = 0.0

    def load(self) -> None:
        """Take over what another daemon read, or this one before it ended.

        :raises StoreUnavailable: the database does not answer
        """
        table, hosts = schema.inventories.c, schema.hosts.c
        query = (
            sa.select(
                hosts.uuid,
                table.resource_class,
                table.min_unit,
                table.max_unit,
                table.step_size,
            )
            .join_from(
                schema.inventories, schema.hosts, table.host_id == hosts.id
            )
            .where(
                (table.min_unit != 1)
                | (table.max_unit != MAX_UNIT)
                | (table.step_size != 1)
            )
            .order_by(table.host_id)
        )
        found: dict[str, dict[str, Units]] = {}
        with self._store.reading() as conn:
            for uuid, name, least, most, step in conn.execute(query):
                bound = UNBOUNDED.most if most == MAX_UNIT else most
                found.setdefault(uuid, {})[name] = Units(least, bound, step)
        for uuid, units in found.items():
            self.put(uuid, units)

    def put(self, uuid: str, units: Mapping[str, Units]) -> None:
        """Keep what was read of a provider."""
        key = tuple(sorted(units.items()))
        self._known[uuid] = self._distinct.setdefault(key, units)

    def of(self, uuid: str) -> Mapping[str, Units]:
        """Return what is known of a provider."""
        return self._known.get(uuid, {})

    def follow(self, uuids: Iterable[str]) -> None:
        """Learn soon what these providers have, and forget all others."""
        wanted = dict.fromkeys(uuids)
        self._known = {
            uuid: units
            for uuid, units in self._known.items()
            if uuid in wanted
        }
        self._unknown = [uuid for uuid in wanted if uuid not in self._known]

    def read_some(self) -> None:
        """Read a few of which nothing is known.

        :raises PlacementUnavailable: the service does not answer
        """
        if time.monotonic() - self._read_at < _TURN_S:
            return
        self._read_at = time.monotonic()
        for uuid in self._unknown[: -_AT_ONCE - 1 : -1]:
            if uuid not in self._known:
                self.put(uuid, self._client.units(uuid))
            # Not before it was read: where that fails it is read later.
            self._unknown.pop()
