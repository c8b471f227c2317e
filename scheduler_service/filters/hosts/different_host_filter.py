"""DifferentHostFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import RowFilter, RowSet
from scheduler_service.filters.support.instance_hosts import (
    hosts_of,
    instances_of_hint,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class DifferentHostFilter(RowFilter):
    """Leaves out hosts with any instance that ``different_host`` names."""

    once = True

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up where the few instances are."""
        named = instances_of_hint(request, 'different_host')
        if not named:
            return None
        hosts = hosts_of(table, named)
        return RowSet(table.rows_of_hosts(hosts), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that one is there."""
        return 'an instance of the hint different_host is on this host'
