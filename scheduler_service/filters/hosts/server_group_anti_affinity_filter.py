"""ServerGroupAntiAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import RowFilter, RowSet
from scheduler_service.filters.support.instance_hosts import hosts_of
from scheduler_service.filters.support.server_groups import (
    group_of,
    members_by_host,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ServerGroupAntiAffinityFilter(RowFilter):
    """Leaves out hosts with enough members of an ``anti-affinity`` group.

    Enough is ``max_server_per_host``, 1 if not said. A host that has the
    very instance which is to be placed passes.
    """

    policy = 'anti-affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up where the members are."""
        group = group_of(table, request)
        if group is None or group.policy != self.policy:
            return None
        most = group.max_server_per_host
        counts = members_by_host(table, group)
        placing = request.placing
        own = hosts_of(table, [placing]) if placing else set()
        full = [
            host
            for host, count in counts.items()
            if count >= most and host not in own
        ]
        return RowSet(table.rows_of_hosts(full), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both figures."""
        group = group_of(table, request)
        if group is None:
            return 'does not pass'
        count = members_by_host(table, group)[table.host_at(row)]
        return (
            f'{count} members of the server group are here, at most '
            f'{group.max_server_per_host} may be'
        )
