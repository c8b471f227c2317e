"""The host filter GroupAntiAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.filters.server_groups import (
    hosts_of_hinted_group,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class GroupAntiAffinityFilter(RowFilter):
    """Rejects hosts that have a member of the group named by ``group``.

    The hint holds the uuid or the name of a server group, whose policy does
    not matter.
    """

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Reject the hosts of the members."""
        hosts = hosts_of_hinted_group(table, request)
        if not hosts:
            return None
        return RowSet(table.rows_of_hosts(hosts), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that a member is on the host."""
        return f'a member of the group {request.hint("group")} is on this host'
