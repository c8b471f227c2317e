"""The host filter RamFilter."""

from __future__ import annotations

from scheduler_service.filters.capacity import CapacityFilter
from scheduler_service.model import Request


class RamFilter(CapacityFilter):
    """Passes hosts with enough memory left.

    ``memory_mb x ram_allocation_ratio - memory_mb_used >= flavor.memory_mb``:
    the ratio multiplies the whole memory, not the free part. Without
    ``allow_self_overcommit`` the host also needs as much memory in all as
    the flavor has.
    """

    resource = 'MEMORY_MB'
    limit_name = 'memory_mb'
    unit = 'MB'

    def requested(self, request: Request) -> int:
        """Return the flavor's memory."""
        return request.flavor.memory_mb
