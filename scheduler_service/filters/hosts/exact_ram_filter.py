"""The host filter ExactRamFilter."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    ExactCapacityFilter,
)
from scheduler_service.model import Request


class ExactRamFilter(ExactCapacityFilter):
    """Passes hosts with exactly the flavor's memory free."""

    unit = 'MB'

    def requested(self, request: Request) -> int:
        """Return the flavor's memory."""
        return request.flavor.memory_mb

    def free(self, table: HostTable) -> Any:
        """Return the memory that is not used in MB, [n]."""
        return table.unused('MEMORY_MB')
