"""Request filters: listed in one table, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.aggregates import (
    IsolateAggregates,
    MapZoneToAggregate,
    RequireTenantAggregate,
)
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.request_filters.traits import (
    ComputeStatus,
    Devices,
    RequireImageTypeSupport,
    TransformImageMetadata,
)
from scheduler_service.settings import Settings

_KEPT = 'scope of request filters'
BUILT_IN: tuple[RequestFilter, ...] = (
    RequireTenantAggregate(),
    MapZoneToAggregate(),
    RequireImageTypeSupport(),
    ComputeStatus(),
    IsolateAggregates(),
    TransformImageMetadata(),
    Devices(),
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
