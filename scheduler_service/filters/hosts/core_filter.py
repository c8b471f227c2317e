"""The host filter CoreFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import CapacityFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CoreFilter(CapacityFilter):
    """Passes hosts with enough vCPUs left.

    ``vcpus x cpu_allocation_ratio - vcpus_used >= flavor.vcpus``. A host
    that reports no vCPUs at all passes, because its data is not collected.
    Without ``allow_self_overcommit`` the host also needs as many vCPUs as
    the flavor has.
    """

    resource = 'VCPU'
    limit_name = 'vcpu'
    unit = 'vCPUs'

    def requested(self, request: Request) -> int:
        """Return the flavor's vCPUs."""
        return request.flavor.vcpus

    def exempt(self, table: HostTable, settings: Settings) -> Mask | None:
        """Return the hosts that report no vCPUs."""
        exempt: Mask = self.total(table) == 0
        return exempt

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        """Report the limit, none where the host reports no vCPUs."""
        if self.total(table)[row] == 0:
            return {}
        return super().limits(table, row, settings)
