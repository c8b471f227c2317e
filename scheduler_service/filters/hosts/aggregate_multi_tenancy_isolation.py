"""The host filter AggregateMultiTenancyIsolation."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

METADATA_PREFIX = 'filter_tenant_id'


class AggregateMultiTenancyIsolation(HostFilter):
    """Reserves the hosts of an aggregate for some projects.

    The projects are the values, split at commas, of every metadata key that
    starts with ``filter_tenant_id``, over all aggregates of a host. A host
    without any such key is open to all projects.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        project_id = request.project_id

        def passes(aggregate_ids: frozenset[int]) -> bool:
            projects = _projects(table, aggregate_ids)
            return not projects or project_id in projects

        return table.by_aggregate_ids(passes)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the project, None where no aggregate is reserved."""
        if not table.any_aggregate_has(METADATA_PREFIX, starts=True):
            return None
        return (request.project_id,)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say for how many projects the host is, without naming them."""
        count = len(_projects(table, table.coded['aggregate_set'].at(row)))
        return (
            f'filter_tenant_id metadata reserves the host for {count} other '
            f'project{"" if count == 1 else "s"} than {request.project_id}'
        )


def _projects(
    table: HostTable, aggregate_ids: frozenset[int]
) -> set[str | None]:
    """Return the projects that a set of aggregates is reserved for."""
    projects: set[str | None] = set()
    for key, values in table.split_metadata(aggregate_ids).items():
        if key.startswith(METADATA_PREFIX):
            projects |= values
    return projects
