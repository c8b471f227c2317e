"""ServerGroupAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import RowFilter, RowSet
from scheduler_service.filters.support.server_groups import (
    group_of,
    members_by_host,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ServerGroupAffinityFilter(RowFilter):
    """Passes hosts with members of an ``affinity`` group, once it has any."""

    policy = 'affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up where the members are."""
        group = group_of(table, request)
        if group is None or group.policy != self.policy:
            return None
        hosts = set(members_by_host(table, group))
        if not hosts:
            return None
        return RowSet(table.rows_of_hosts(hosts), passes=True)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say where the group is."""
        group = group_of(table, request)
        hosts = sorted(members_by_host(table, group)) if group else []
        return f'the server group is on {", ".join(hosts[:5])}'
