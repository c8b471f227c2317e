"""GroupAntiAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import RowFilter, RowSet
from scheduler_service.filters.support.server_groups import (
    hosts_of_hinted_group,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class GroupAntiAffinityFilter(RowFilter):
    """Leaves out hosts with a member of the group of the hint ``group``."""

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up where the members are."""
        hosts = hosts_of_hinted_group(table, request)
        if not hosts:
            return None
        return RowSet(table.rows_of_hosts(hosts), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that one is here."""
        return f'a member of the group {request.hint("group")} is here'
