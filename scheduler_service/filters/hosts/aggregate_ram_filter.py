"""The host filter AggregateRamFilter."""

from __future__ import annotations

from scheduler_service.filters.capacity import (
    AggregateRatioMixin,
)
from scheduler_service.filters.hosts.ram_filter import RamFilter


class AggregateRamFilter(AggregateRatioMixin, RamFilter):
    """RamFilter with ``ram_allocation_ratio`` from aggregate metadata.

    The least value counts where several aggregates of a host set one. Where
    none does, or one of the values is not a number, the host's own ratio
    counts.
    """

    ratio_key = 'ram_allocation_ratio'
