"""AggregateTypeAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

KEY = 'instance_type'


class AggregateTypeAffinityFilter(HostFilter):
    """Keeps hosts of some aggregates for flavors by name.

    The names are the values of the metadata ``instance_type``, split at
    commas; a host without any is for every flavor.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        name = request.flavor.name

        def verdict(ids: frozenset[int]) -> bool:
            names = _names(table, ids)
            return not names or name in names

        return table.by_aggregates(verdict)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the flavor's name, unless no aggregate names any."""
        if not table.any_aggregate_has(KEY):
            return None
        return (request.flavor.name,)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the flavors that it is for."""
        names = _names(table, table.coded['aggregate_set'].at(row))
        told = ', '.join(sorted(names))
        return f'the host is for {told}, the flavor is {request.flavor.name}'


def _names(table: HostTable, ids: frozenset[int]) -> set[str]:
    values = table.values_of(ids, KEY)
    return {part.strip() for value in values for part in value.split(',')}
