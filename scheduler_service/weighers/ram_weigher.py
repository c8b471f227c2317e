"""The weigher RAMWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher


class RAMWeigher(ColumnWeigher):
    """Prefers hosts with more free memory.

    ``memory_mb - memory_mb_used``, without the allocation ratio; a negative
    result counts as 0.
    """

    multiplier_option = 'ram_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:
        """Return the free memory in MB, at least 0."""

        def make() -> Formula:
            ram = table.resources['MEMORY_MB']
            total, used = ram.total, ram.used
            return lambda rows: np.maximum(total[rows] - used[rows], 0.0)

        return table.load_column(self.name, 'MEMORY_MB', make)
