"""The request filter compute_status_filter."""

from __future__ import annotations

from scheduler_service.model import Request
from scheduler_service.model.aggregate_map import AggregateMap
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.settings import Settings


class ComputeStatusFilter(RequestFilter):
    """Forbids hosts with the trait ``COMPUTE_STATUS_DISABLED``.

    Compute services set it on hosts that are disabled.
    """

    name = 'compute_status_filter'

    def apply(
        self,
        request: Request,
        aggregates: AggregateMap,
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Forbid the trait for every request."""
        scope.forbidden_traits.add('COMPUTE_STATUS_DISABLED')
