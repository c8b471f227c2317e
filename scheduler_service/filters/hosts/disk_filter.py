"""DiskFilter."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class DiskFilter(CapacityFilter):
    """Passes hosts with enough disk left for root, ephemeral and swap.

    ``local_gb x 1024 x disk_allocation_ratio - used >= asked``, all in MB;
    what is used follows from what is free, so a small
    ``disk_available_least`` counts as used space.
    """

    resource = 'DISK_GB'
    limit_name = 'disk_gb'
    unit = 'MB of disk'

    def asked(self, request: Request) -> int:
        """Return root, ephemeral and swap in MB."""
        return request.disk_mb

    def total(self, table: HostTable) -> Any:
        """Return the hosts' disks in MB."""
        return table.resources['DISK_GB'].total * 1024

    def used(self, table: HostTable) -> Any:
        """Return the disks less what is free of them, in MB."""
        return self.total(table) - table.free_disk_mb()

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        """Return the limit in MB."""
        return super().limit(table, settings) * 1024

    def left_formula(self, table: HostTable, settings: Settings) -> Formula:
        """Return the limit, less the disk, plus what is free of it, MB."""
        disk = table.resources['DISK_GB']
        limit, total, used = (
            super().limit(table, settings),
            disk.total,
            disk.used,
        )
        if not table.some_measure_disk():
            return lambda rows: (limit[rows] - used[rows]) * 1024
        least = table.number('disk_available_least')
        return lambda rows: (
            (limit[rows] - total[rows]) * 1024
            + np.fmin(total[rows] - used[rows], least[rows]) * 1024.0
        )

    def checks(self, request: Request, amount: int) -> bool:
        """Whether a claim of *amount* GB is what this filter looks at."""
        return self.asked(request) == amount * 1024

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        """Report the limit in GB."""
        return {self.limit_name: self.limit(table, settings)[row] / 1024}
