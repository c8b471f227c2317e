"""AggregateRamFilter."""

from __future__ import annotations

from scheduler_service.filters.hosts.ram_filter import RamFilter
from scheduler_service.filters.support.aggregate_ratio import (
    AggregateRatioMixin,
)


class AggregateRamFilter(AggregateRatioMixin, RamFilter):
    """RamFilter with ``ram_allocation_ratio`` from aggregates' metadata.

    The least of several values; one that is no number, or none at all: the
    host's own ratio.
    """

    ratio_key = 'ram_allocation_ratio'
