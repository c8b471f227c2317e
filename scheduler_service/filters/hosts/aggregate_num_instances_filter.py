"""AggregateNumInstancesFilter."""

from __future__ import annotations

from scheduler_service.filters.hosts.num_instances_filter import (
    NumInstancesFilter,
)
from scheduler_service.filters.support.count import AggregateLimitMixin


class AggregateNumInstancesFilter(AggregateLimitMixin, NumInstancesFilter):
    """NumInstancesFilter, ``max_instances_per_host`` from aggregates.

    The least of several values; one that is no whole number, or none at all:
    the option.
    """
