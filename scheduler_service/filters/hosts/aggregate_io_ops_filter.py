"""The host filter AggregateIoOpsFilter."""

from __future__ import annotations

from scheduler_service.filters.capacity import AggregateLimitMixin
from scheduler_service.filters.hosts.io_ops_filter import (
    IoOpsFilter,
)


class AggregateIoOpsFilter(AggregateLimitMixin, IoOpsFilter):
    """IoOpsFilter with the limit from aggregate metadata.

    The metadata key is ``max_io_ops_per_host``. The least value counts where
    several aggregates of a host set one. Where none does, or one of the
    values is not a whole number, the option counts.
    """
