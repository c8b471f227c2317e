"""require_tenant_aggregate."""

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
    """Keeps a project to its own aggregates, where it has any.

    Those with a metadata key that starts with ``filter_tenant_id`` and has
    the project's id as its whole value.
    """

    name = 'require_tenant_aggregate'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one of the project's aggregates.

        :raises RequestFilterFailed: it has none, and needs one
        """
        if not settings.limit_tenants_to_placement_aggregate:
            return
        own = aggregate_uuids(
            one for one in aggregates.values() if _is_for(one, request)
        )
        if own:
            scope.required_aggregates.append(own)
        elif settings.placement_aggregate_required_for_tenants:
            raise errors.RequestFilterFailed(
                'No valid host was found. No hosts available for tenant',
                project_id=request.project_id,
                filter=self.name,
            )


def _is_for(aggregate: Aggregate, request: Request) -> bool:
    return any(
        key.startswith(_METADATA_PREFIX) and value == request.project_id
        for key, value in aggregate.metadata.items()
    )
