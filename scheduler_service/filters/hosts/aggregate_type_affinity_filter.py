"""The host filter AggregateTypeAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.aggregates import AggregateFilter, Metadata
from scheduler_service.model import Request
from scheduler_service.settings import Settings

METADATA_KEY = 'instance_type'


class AggregateTypeAffinityFilter(AggregateFilter):
    """Reserves the hosts of an aggregate for some flavors, by name.

    The names are the values of the metadata key ``instance_type``, split at
    commas. A host without the key is open to every flavor.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the flavor's name, None where no aggregate is reserved."""
        if not table.any_aggregate_has(METADATA_KEY):
            return None
        return (request.flavor.name,)

    def mismatch(self, metadata: Metadata, key: tuple[str | None]) -> str:
        """Name the flavors that the host is reserved for."""
        names = metadata.get(METADATA_KEY)
        if not names or key[0] in names:
            return ''
        flavors = ', '.join(sorted(names))
        return (
            f'the host is reserved for the flavors {flavors}; the request has '
            f'{key[0]}'
        )
