"""The host filter AggregateDiskFilter."""

from __future__ import annotations

from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    AggregateRatioMixin,
)
from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.settings import Settings


class AggregateDiskFilter(AggregateRatioMixin, DiskFilter):
    """DiskFilter with ``disk_allocation_ratio`` from aggregate metadata.

    The least value counts where several aggregates of a host set one. Where
    none does, or one of the values is not a number, the host's own ratio
    counts.
    """

    ratio_key = 'disk_allocation_ratio'

    def remaining_formula(
        self, table: HostTable, settings: Settings
    ) -> Formula:
        """Return the formula of ``limit - used``, in MB."""
        limit, total = self.limit(table, settings), self.total(table)
        free = table.free_disk_formula()
        return lambda rows: limit[rows] - (total[rows] - free(rows))
