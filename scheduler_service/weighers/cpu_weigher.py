"""The weigher CPUWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher


class CPUWeigher(ColumnWeigher):
    """Prefers hosts with more vCPUs left.

    ``vcpus x cpu_allocation_ratio - vcpus_used``; a negative result counts
    as 0.
    """

    multiplier_option = 'cpu_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:
        """Return the vCPUs left under the allocation ratio, at least 0."""

        def make() -> Formula:
            limit = table.capacity('VCPU', settings)
            used = table.resources['VCPU'].used
            return lambda rows: np.maximum(limit[rows] - used[rows], 0.0)

        ratio = settings.default_ratio('VCPU')
        return table.load_column((self.name, ratio), 'VCPU', make)
