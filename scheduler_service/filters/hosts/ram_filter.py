"""Host filters on memory."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    CapacityFilter,
    ExactCapacityFilter,
)


class RamFilter(CapacityFilter):
    """Passes hosts with enough memory left.

    ``memory_mb x ram_allocation_ratio - memory_mb_used >= requested``: the
    ratio multiplies the whole memory, not the free part. Without
    ``allow_self_overcommit`` the host also needs as much memory in all as is
    requested.
    """

    resource = 'MEMORY_MB'
    limit_name = 'memory_mb'
    unit = 'MB'


class AggregateRamFilter(RamFilter):
    """RamFilter with ``ram_allocation_ratio`` from aggregate metadata.

    The least value counts where several aggregates of a host set one. Where
    none does, or one of the values is not a number, the host's own ratio
    counts.
    """

    ratio_key = 'ram_allocation_ratio'


class ExactRamFilter(ExactCapacityFilter):
    """Passes hosts with exactly the requested memory free."""

    resource = 'MEMORY_MB'
    unit = 'MB'

    def free(self, table: HostTable) -> Any:
        return table.unused('MEMORY_MB')
