"""ExactDiskFilter."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support.exact_capacity import (
    ExactCapacityFilter,
)
from scheduler_service.model import Request


class ExactDiskFilter(ExactCapacityFilter):
    """Passes hosts with exactly root, ephemeral and swap free, in MB."""

    unit = 'MB of disk'

    def asked(self, request: Request) -> int:
        """Return root, ephemeral and swap in MB."""
        return request.disk_mb

    def free(self, table: HostTable) -> Any:
        """Return free disk in MB."""
        return table.free_disk_mb()
