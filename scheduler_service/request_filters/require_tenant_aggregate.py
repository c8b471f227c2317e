"""The request filter require_tenant_aggregate."""

from __future__ import annotations

from scheduler_service import errors
from scheduler_service.model import Aggregate
from scheduler_service.request_filters.base import (
    RequestFilter,
    ScopedRequest,
    uuids_of,
)

_METADATA_PREFIX = 'filter_tenant_id'


class RequireTenantAggregate(RequestFilter):
    """Keeps the instances of a project on the project's own aggregates.

    Those are aggregates with a metadata key that starts with
    ``filter_tenant_id`` and has the project's id as its whole value. A
    project without any may use all hosts, or none with
    ``placement_aggregate_required_for_tenants``.
    """

    name = 'require_tenant_aggregate'

    def apply(self, scoped: ScopedRequest) -> None:
        """Require one of the project's aggregates.

        :raises RequestFilterFailed: the project has none, and needs one
        """
        request, aggregates, settings, scope = scoped
        if not settings.limit_tenants_to_placement_aggregate:
            return
        uuids = uuids_of(
            aggregates, 'by project', _projects, request.project_id
        )
        if uuids:
            scope.required_aggregates.append(uuids)
        elif settings.placement_aggregate_required_for_tenants:
            raise errors.RequestFilterFailed(
                'No valid host was found. No hosts available for tenant',
                project_id=request.project_id,
                filter=self.name,
            )


def _projects(aggregate: Aggregate) -> set[str]:
    """Return the projects that an aggregate is reserved for."""
    return {
        value
        for key, value in aggregate.metadata.items()
        if key.startswith(_METADATA_PREFIX)
    }
