"""RAMWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class RAMWeigher(Weigher):
    """Prefers hosts with more free memory, in MB; negative counts as 0."""

    multiplier_option = 'ram_weight_multiplier'
    minval = 0.0
    depends = 'row'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return free memory."""
        ram = table.resources['MEMORY_MB']
        return (ram.total[rows] - ram.used[rows]).astype(np.float64)
