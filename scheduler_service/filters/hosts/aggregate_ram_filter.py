"""AggregateRamFilter."""

from __future__ import annotations

from scheduler_service.filters.hosts.aggregate_capacity import AggregateRatio
from scheduler_service.filters.hosts.ram_filter import RamFilter


class AggregateRamFilter(AggregateRatio, RamFilter):
    """RamFilter with ``ram_allocation_ratio`` from aggregates' metadata.

    The least of several values; one that is no number, or none at all: the
    host's own ratio.
    """

    ratio_key = 'ram_allocation_ratio'
