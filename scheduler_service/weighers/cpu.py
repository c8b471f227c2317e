"""CPUWeigher."""

from __future__ import annotations

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class CPUWeigher(Weigher):
    """Prefers hosts with more vCPUs left of ``vcpus x ratio``, at least 0."""

    multiplier_option = 'cpu_weight_multiplier'
    minval = 0.0
    depends = 'row'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return vCPUs left under the ratio."""
        used = table.resources['VCPU'].used
        left: Floats = table.capacity('VCPU', settings)[rows] - used[rows]
        return left
