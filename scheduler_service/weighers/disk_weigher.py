"""The weigher DiskWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher


class DiskWeigher(ColumnWeigher):
    """Prefers hosts with more free disk.

    ``local_gb - local_gb_used``, or ``disk_available_least`` where that is
    less, in MB and without the allocation ratio; a negative result counts as
    0.
    """

    multiplier_option = 'disk_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:
        """Return the free disk in MB, at least 0."""

        def make() -> Formula:
            free = table.free_disk_formula()
            return lambda rows: np.maximum(free(rows), 0.0)

        return table.load_column(self.name, 'DISK_GB', make)
