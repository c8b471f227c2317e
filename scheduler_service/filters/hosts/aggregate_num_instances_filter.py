"""The host filter AggregateNumInstancesFilter."""

from __future__ import annotations

from scheduler_service.filters.capacity import AggregateLimitMixin
from scheduler_service.filters.hosts.num_instances_filter import (
    NumInstancesFilter,
)


class AggregateNumInstancesFilter(AggregateLimitMixin, NumInstancesFilter):
    """NumInstancesFilter with the limit from aggregate metadata.

    The metadata key is ``max_instances_per_host``. The least value counts
    where several aggregates of a host set one. Where none does, or one of
    the values is not a whole number, the option counts.
    """
