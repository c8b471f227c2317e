"""The host filter AvailabilityZoneFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AvailabilityZoneFilter(HostFilter):
    """Passes hosts in the requested availability zone.

    The zones of a host are the ``availability_zone`` metadata of its
    aggregates, split at commas. A host without any is in
    ``default_availability_zone``.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        zone = request.availability_zone
        if not zone:
            return None
        default = settings.default_availability_zone

        def passes(aggregate_ids: frozenset[int]) -> bool:
            return zone in _zones(table, aggregate_ids, default)

        return table.by_aggregate_ids(passes)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the requested and the default zone, None for no zone."""
        zone = request.availability_zone
        if not zone:
            return None
        return zone, settings.default_availability_zone

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the requested zone and the host's zones."""
        ids = table.coded['aggregate_set'].at(row)
        zones = _zones(table, ids, settings.default_availability_zone)
        return (
            f'zone {request.availability_zone} requested, the host is in '
            f'{", ".join(sorted(zones))}'
        )


def _zones(
    table: HostTable, aggregate_ids: frozenset[int], default: str
) -> frozenset[str]:
    """Return the zones of a set of aggregates; if none, the default."""
    zones = table.split_metadata(aggregate_ids).get('availability_zone')
    return zones or frozenset((default,))
