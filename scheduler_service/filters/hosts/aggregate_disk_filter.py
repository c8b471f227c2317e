"""AggregateDiskFilter."""

from __future__ import annotations

from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.filters.support.aggregate_ratio import (
    AggregateRatioMixin,
)
from scheduler_service.settings import Settings


class AggregateDiskFilter(AggregateRatioMixin, DiskFilter):
    """DiskFilter with ``disk_allocation_ratio`` from aggregates' metadata.

    The least of several values; one that is no number, or none at all: the
    host's own ratio.
    """

    ratio_key = 'disk_allocation_ratio'

    def left_formula(self, table: HostTable, settings: Settings) -> Formula:
        """Return the limit less what is not free of the disk, MB."""
        limit, total = self.limit(table, settings), self.total(table)
        free = table.free_disk_formula()
        return lambda rows: limit[rows] - (total[rows] - free(rows))
