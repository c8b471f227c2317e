"""AggregateDiskFilter."""

from __future__ import annotations

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.filters.hosts.aggregate_capacity import AggregateRatio
from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.settings import Settings


class AggregateDiskFilter(AggregateRatio, DiskFilter):
    """DiskFilter with ``disk_allocation_ratio`` from aggregates' metadata.

    The least of several values; one that is no number, or none at all: the
    host's own ratio.
    """

    ratio_key = 'disk_allocation_ratio'

    def left(self, table: HostTable, settings: Settings) -> Floats:
        """Return what is left in MB."""
        left: Floats = self.limit(table, settings) - self.used(table)
        return left
