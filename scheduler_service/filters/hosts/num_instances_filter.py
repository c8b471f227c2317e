"""The host filter NumInstancesFilter."""

from __future__ import annotations

from scheduler_service.filters.capacity import CountFilter


class NumInstancesFilter(CountFilter):
    """Passes hosts with fewer instances than ``max_instances_per_host``."""

    column = 'num_instances'
    option = 'max_instances_per_host'
    unit = 'instances'
