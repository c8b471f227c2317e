"""Host filters on vCPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    CapacityFilter,
    ExactCapacityFilter,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CoreFilter(CapacityFilter):
    """Passes hosts with enough vCPUs left.

    ``vcpus x cpu_allocation_ratio - vcpus_used >= requested``, where vCPUs
    that count as another class are not requested. A host that reports no
    vCPUs at all passes, because its data is not collected. Without
    ``allow_self_overcommit`` the host also needs as many vCPUs in all as are
    requested.
    """

    resource = 'VCPU'
    limit_name = 'vcpu'
    unit = 'vCPUs'

    def exempt(self, table: HostTable) -> Mask | None:
        exempt: Mask = self.total(table) == 0
        return exempt

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        if self.total(table)[row] == 0:
            return {}
        return super().limits(table, row, settings)


class AggregateCoreFilter(CoreFilter):
    """CoreFilter with ``cpu_allocation_ratio`` from aggregate metadata.

    The least value counts where several aggregates of a host set one. Where
    none does, or one of the values is not a number, the host's own ratio
    counts.
    """

    ratio_key = 'cpu_allocation_ratio'


class ExactCoreFilter(ExactCapacityFilter):
    """Passes hosts with exactly the requested vCPUs free.

    A host that reports no vCPUs at all fails.
    """

    resource = 'VCPU'
    unit = 'vCPUs'

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
        if table.resources['VCPU'].total[row] <= 0:
            return 'the host reports no vCPUs'
        return super().reason(table, row, request, settings)
