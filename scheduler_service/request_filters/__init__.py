"""Request filters: one module each, listed in the order they run in."""

from __future__ import annotations

from scheduler_service.model import Request
from scheduler_service.model.aggregate_map import AggregateMap
from scheduler_service.request_filters.base import (
    RequestFilter,
    Scope,
    ScopedRequest,
)
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

# Key of the scope among the attributes cached on a request.
_CACHE_KEY = 'scope of request filters'
# How many aggregates of a parameter a query names that people read.
_MOST_NAMED = 20
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
    aggregates: AggregateMap,
    settings: Settings,
) -> Scope:
    """Return the restrictions of all request filters, none on a rebuild.

    The scope is cached on the request until aggregates or settings are
    replaced.

    :param aggregates: all aggregates by id
    :raises RequestFilterFailed: no host at all may take the request
    """
    cached = request.__dict__.get(_CACHE_KEY)
    if cached and cached[0] is aggregates and cached[1] is settings:
        cached_scope: Scope = cached[2]
        return cached_scope
    scope = Scope()
    if not request.is_rebuild:
        _add_destination(request, scope)
        scoped = ScopedRequest(request, aggregates, settings, scope)
        for request_filter in BUILT_IN:
            request_filter.apply(scoped)
    request.__dict__[_CACHE_KEY] = aggregates, settings, scope
    return scope


def short_query(
    request: Request, aggregates: AggregateMap, settings: Settings
) -> str:
    """Return the scope as a placement query that people read.

    It names a few aggregates of each parameter, and counts the others.
    """
    scope = scope_of(request, aggregates, settings)
    key = (
        'query',
        tuple(scope.required_aggregates),
        scope.forbidden_aggregates,
        frozenset(scope.required_traits),
        frozenset(scope.forbidden_traits),
    )
    text: str = aggregates.memoize(key, lambda: scope.query(_MOST_NAMED))
    return text


def _add_destination(request: Request, scope: Scope) -> None:
    """Restrict a request to the aggregates that it names itself."""
    destination = request.requested_destination
    if destination is None:
        return
    scope.required_aggregates += (
        frozenset(entry.split(',')) for entry in destination.aggregates
    )
    scope.forbid(frozenset(destination.forbidden_aggregates))


__all__ = [
    'BUILT_IN',
    'RequestFilter',
    'Scope',
    'ScopedRequest',
    'scope_of',
    'short_query',
]
