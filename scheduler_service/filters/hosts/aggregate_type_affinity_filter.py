"""The host filter AggregateTypeAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

METADATA_KEY = 'instance_type'


class AggregateTypeAffinityFilter(HostFilter):
    """Reserves the hosts of an aggregate for some flavors, by name.

    The names are the values of the metadata key ``instance_type``, split at
    commas. A host without the key is open to every flavor.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        name = request.flavor.name

        def passes(aggregate_ids: frozenset[int]) -> bool:
            names = table.split_metadata(aggregate_ids).get(METADATA_KEY)
            return not names or name in names

        return table.by_aggregate_ids(passes)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the flavor's name, None where no aggregate is reserved."""
        if not table.any_aggregate_has(METADATA_KEY):
            return None
        return (request.flavor.name,)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the flavors that the host is reserved for."""
        ids = table.coded['aggregate_set'].at(row)
        metadata = table.split_metadata(ids)
        names = ', '.join(sorted(metadata[METADATA_KEY]))
        return (
            f'the host is reserved for the flavors {names}; the request has '
            f'{request.flavor.name}'
        )
