"""NumInstancesFilter and AggregateNumInstancesFilter."""

from __future__ import annotations

from scheduler_service.filters.hosts.io_ops_filter import (
    ByAggregate,
    CountFilter,
)


class NumInstancesFilter(CountFilter):
    """Passes hosts with fewer instances than ``max_instances_per_host``."""

    column = 'num_instances'
    option = 'max_instances_per_host'
    what = 'instances'


class AggregateNumInstancesFilter(ByAggregate, NumInstancesFilter):
    """NumInstancesFilter, ``max_instances_per_host`` from aggregates.

    The least of several values; one that is no whole number, or none at all:
    the option.
    """
