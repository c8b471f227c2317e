"""AggregateIoOpsFilter."""

from __future__ import annotations

from scheduler_service.filters.hosts.io_ops_filter import IoOpsFilter
from scheduler_service.filters.support.count import AggregateLimitMixin


class AggregateIoOpsFilter(AggregateLimitMixin, IoOpsFilter):
    """IoOpsFilter with ``max_io_ops_per_host`` from aggregates' metadata.

    The least of several values; one that is no whole number, or none at all:
    the option.
    """
