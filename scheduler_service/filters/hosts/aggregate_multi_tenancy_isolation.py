"""AggregateMultiTenancyIsolation."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

PREFIX = 'filter_tenant_id'


class AggregateMultiTenancyIsolation(HostFilter):
    """Keeps hosts of some projects' aggregates for those projects.

    The projects are the values, split at commas, of every metadata key that
    starts with ``filter_tenant_id``, over all of the host's aggregates. A
    host with none is for everybody.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        project = request.project_id

        def verdict(ids: frozenset[int]) -> bool:
            tenants = _tenants(table, ids)
            return not tenants or project in tenants

        return table.by_aggregates(verdict)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the project, unless no aggregate is for any project."""
        if not table.any_aggregate_has(PREFIX, starts=True):
            return None
        return (request.project_id,)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that it is somebody else's."""
        count = len(_tenants(table, table.coded['aggregate_set'].at(row)))
        return (
            f'the host is for {count} projects, and '
            f'{request.project_id} is not one of them'
        )


def _tenants(table: HostTable, ids: frozenset[int]) -> set[str]:
    metadata = table.split_metadata(ids)
    found: set[str] = set()
    for key, values in metadata.items():
        if key.startswith(PREFIX):
            found |= values
    return found
