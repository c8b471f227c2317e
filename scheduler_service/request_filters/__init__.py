"""Request filters: listed in one table, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.request_filters.compute_status_filter import (
    ComputeStatusFilter,
)
from scheduler_service.request_filters.devices_filter import (
    DevicesFilter,
)
from scheduler_service.request_filters.isolate_aggregates import (
    IsolateAggregates,
)
from scheduler_service.request_filters.map_az_to_placement_aggregate import (
    MapAzToPlacementAggregate,
)
from scheduler_service.request_filters.require_image_type_support import (
    RequireImageTypeSupport,
)
from scheduler_service.request_filters.require_tenant_aggregate import (
    RequireTenantAggregate,
)
from scheduler_service.request_filters.transform_image_metadata import (
    TransformImageMetadata,
)
from scheduler_service.settings import Settings

_KEPT = 'scope of request filters'
BUILT_IN: tuple[RequestFilter, ...] = (
    RequireTenantAggregate(),
    MapAzToPlacementAggregate(),
    RequireImageTypeSupport(),
    ComputeStatusFilter(),
    IsolateAggregates(),
    TransformImageMetadata(),
    DevicesFilter(),
)


def scope_of(
    request: Request,
    aggregates: Mapping[int, Aggregate],
    settings: Settings,
) -> Scope:
    """Return what all request filters add; nothing on a rebuild.

    Worked out once for a request, and again when the aggregates moved.

    :raises RequestFilterFailed: the request can go nowhere
    """
    known = request.__dict__.get(_KEPT)
    if known and known[0] is aggregates and known[1] is settings:
        kept: Scope = known[2]
        return kept
    scope = Scope()
    if not request.is_rebuild:
        for one in BUILT_IN:
            one.narrow(request, aggregates, settings, scope)
    request.__dict__[_KEPT] = aggregates, settings, scope
    return scope


__all__ = ['BUILT_IN', 'RequestFilter', 'Scope', 'scope_of']
