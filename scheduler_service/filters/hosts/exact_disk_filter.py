"""The host filter ExactDiskFilter."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    ExactCapacityFilter,
)
from scheduler_service.model import Request


class ExactDiskFilter(ExactCapacityFilter):
    """Passes hosts with exactly the requested disk free.

    Requested are root, ephemeral and swap together, in MB.
    """

    unit = 'MB of disk'

    def requested(self, request: Request) -> int:
        """Return root, ephemeral and swap together, in MB."""
        return request.disk_mb

    def free(self, table: HostTable) -> Any:
        """Return the free disk in MB, float64[n]."""
        return table.free_disk_mb()
