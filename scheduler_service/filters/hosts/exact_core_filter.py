"""The host filter ExactCoreFilter."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    ExactCapacityFilter,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ExactCoreFilter(ExactCapacityFilter):
    """Passes hosts with exactly the flavor's vCPUs free.

    A host that reports no vCPUs at all fails.
    """

    unit = 'vCPUs'

    def requested(self, request: Request) -> int:
        """Return the flavor's vCPUs."""
        return request.flavor.vcpus

    def free(self, table: HostTable) -> Any:
        """Return the vCPUs that are not used, float64[n].

        NaN where a host reports no vCPUs: it equals no requested amount.
        """

        def make() -> Formula:
            columns = table.resources['VCPU']
            total, used = columns.total, columns.used
            return lambda rows: np.where(
                total[rows] > 0, total[rows] - used[rows], np.nan
            )

        return table.load_column(('exactly free', 'VCPU'), 'VCPU', make)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both amounts, or say that the host reports no vCPUs."""
        if table.resources['VCPU'].total[row] <= 0:
            return 'the host reports no vCPUs'
        return super().reason(table, row, request, settings)
