"""The host filter AggregateMultiTenancyIsolation."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.hosts.aggregate_filter import (
    AggregateFilter,
    Metadata,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings

METADATA_PREFIX = 'filter_tenant_id'


class AggregateMultiTenancyIsolation(AggregateFilter):
    """Reserves the hosts of an aggregate for some projects.

    The projects are the values, split at commas, of every metadata key that
    starts with ``filter_tenant_id``, over all aggregates of a host. A host
    without any such key is open to all projects.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        if not table.any_aggregate_has(METADATA_PREFIX, starts=True):
            return None
        return (request.project_id,)

    def mismatch(self, metadata: Metadata, key: tuple[str | None]) -> str:
        """Return how many projects have the host, without naming them."""
        projects: set[str | None] = set()
        for name, values in metadata.items():
            if name.startswith(METADATA_PREFIX):
                projects |= values
        (project_id,) = key
        if not projects or project_id in projects:
            return ''
        return (
            f'filter_tenant_id metadata reserves the host for {len(projects)} '
            f'other project{"" if len(projects) == 1 else "s"} than '
            f'{project_id}'
        )
