"""Host filters on the number of instances."""

from __future__ import annotations

from scheduler_service.filters.capacity import CountFilter


class NumInstancesFilter(CountFilter):
    """Passes hosts with fewer instances than ``max_instances_per_host``."""

    column = 'num_instances'
    option = 'max_instances_per_host'
    unit = 'instances'


class AggregateNumInstancesFilter(NumInstancesFilter):
    """NumInstancesFilter with the limit from aggregate metadata.

    The metadata key is ``max_instances_per_host``. The least value counts
    where several aggregates of a host set one. Where none does, or one of
    the values is not a whole number, the option counts.
    """

    by_aggregate = True
