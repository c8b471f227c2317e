"""The request filter compute_status_filter."""

from __future__ import annotations

from scheduler_service.request_filters.base import RequestFilter, ScopedRequest


class ComputeStatusFilter(RequestFilter):
    """Forbids hosts with the trait ``COMPUTE_STATUS_DISABLED``.

    Compute services set it on hosts that are disabled.
    """

    name = 'compute_status_filter'

    def apply(self, scoped: ScopedRequest) -> None:
        """Forbid the trait for every request."""
        scoped.scope.forbidden_traits.add('COMPUTE_STATUS_DISABLED')
