"""The host filter AvailabilityZoneFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.aggregates import AggregateFilter, Metadata
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AvailabilityZoneFilter(AggregateFilter):
    """Passes hosts in the requested availability zone.

    The zones of a host are the ``availability_zone`` metadata of its
    aggregates, split at commas. A host without any is in
    ``default_availability_zone``.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        zone = request.availability_zone
        if not zone:
            return None
        return zone, settings.default_availability_zone

    def mismatch(self, metadata: Metadata, key: tuple[str, str]) -> str:
        zone, default = key
        zones = metadata.get('availability_zone') or {default}
        if zone in zones:
            return ''
        names = ', '.join(sorted(zones))
        return f'zone {zone} requested, the host is in {names}'
