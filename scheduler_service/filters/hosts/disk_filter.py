"""Host filters on disk."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    CapacityFilter,
    ExactCapacityFilter,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class DiskFilter(CapacityFilter):
    """Passes hosts with enough disk left for root, ephemeral and swap.

    A root disk that is a volume counts as 0, and an amount of DISK_GB that the
    request states goes before those of the flavor.

    ``local_gb x 1024 x disk_allocation_ratio - used >= requested``, in MB,
    where used is ``local_gb x 1024`` less the free disk. Where
    ``disk_available_least`` is less than what is free by count, it is the
    free disk. Without ``allow_self_overcommit`` the host also needs as much
    disk in all as is requested.
    """

    resource = 'DISK_GB'
    limit_name = 'disk_gb'
    unit = 'MB of disk'
    units = 1024

    def requested(self, request: Request) -> int:
        return request.disk_mb

    def total(self, table: HostTable) -> Any:
        return table.resources['DISK_GB'].total * 1024

    def used(self, table: HostTable) -> Formula:
        total, free = self.total(table), table.free_disk_formula()
        return lambda rows: total[rows] - free(rows)

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        return super().limit(table, settings) * 1024


class AggregateDiskFilter(DiskFilter):
    """DiskFilter with ``disk_allocation_ratio`` from aggregate metadata.

    The least value counts where several aggregates of a host set one. Where
    none does, or one of the values is not a number, the host's own ratio
    counts.
    """

    ratio_key = 'disk_allocation_ratio'


class ExactDiskFilter(ExactCapacityFilter):
    """Passes hosts with exactly the requested disk free.

    Requested are root, ephemeral and swap together, in MB.
    """

    resource = 'DISK_GB'
    unit = 'MB of disk'

    def requested(self, request: Request) -> int:
        return request.disk_mb

    def free(self, table: HostTable) -> Any:
        return table.free_disk_mb()
