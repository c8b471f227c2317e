"""DiskWeigher."""

from __future__ import annotations

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class DiskWeigher(Weigher):
    """Prefers hosts with more free disk, in MB; negative counts as 0."""

    multiplier_option = 'disk_weight_multiplier'
    minval = 0.0
    depends = 'row'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return free disk."""
        free: Floats = table.free_disk_mb()[rows]
        return free
