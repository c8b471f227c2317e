"""GroupAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import RowFilter, RowSet
from scheduler_service.filters.support.server_groups import (
    hosts_of_hinted_group,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class GroupAffinityFilter(RowFilter):
    """Passes hosts that have a member of the group of the hint ``group``.

    A group without members on any host passes everywhere.
    """

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up where the members are."""
        hosts = hosts_of_hinted_group(table, request)
        if not hosts:
            return None
        return RowSet(table.rows_of_hosts(hosts), passes=True)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that none is here."""
        return f'no member of the group {request.hint("group")} is here'
