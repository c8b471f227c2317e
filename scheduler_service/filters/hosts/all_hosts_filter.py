"""The host filter AllHostsFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AllHostsFilter(HostFilter):
    """Passes every host."""

    once = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return None
