"""The request filter require_tenant_aggregate."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service import errors
from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.request_filters.support.aggregate_uuids import (
    aggregate_uuids,
)
from scheduler_service.settings import Settings

_METADATA_PREFIX = 'filter_tenant_id'


class RequireTenantAggregate(RequestFilter):
    """Keeps the instances of a project on the project's own aggregates.

    Those are aggregates with a metadata key that starts with
    ``filter_tenant_id`` and has the project's id as its whole value. A
    project without any may use all hosts, or none with
    ``placement_aggregate_required_for_tenants``.
    """

    name = 'require_tenant_aggregate'

    def apply(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one of the project's aggregates.

        :raises RequestFilterFailed: the project has none, and needs one
        """
        if not settings.limit_tenants_to_placement_aggregate:
            return
        uuids = aggregate_uuids(
            aggregate
            for aggregate in aggregates.values()
            if _is_reserved_for(aggregate, request.project_id)
        )
        if uuids:
            scope.required_aggregates.append(uuids)
        elif settings.placement_aggregate_required_for_tenants:
            raise errors.RequestFilterFailed(
                'No valid host was found. No hosts available for tenant',
                project_id=request.project_id,
                filter=self.name,
            )


def _is_reserved_for(aggregate: Aggregate, project_id: str | None) -> bool:
    return any(
        key.startswith(_METADATA_PREFIX) and value == project_id
        for key, value in aggregate.metadata.items()
    )
