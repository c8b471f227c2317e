"""The host filter ServerGroupAntiAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.filters.server_groups import (
    group_of,
    hosts_of,
    members_by_host,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ServerGroupAntiAffinityFilter(RowFilter):
    """Keeps the members of an ``anti-affinity`` server group apart.

    Rejects hosts that have ``max_server_per_host`` members or more, 1 where
    the rule is not set. A host that already has the instance to be placed
    passes. Every host passes where the group has another policy.
    """

    policy = 'anti-affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Reject the hosts that have the most members allowed."""
        group = group_of(table, request)
        if group is None or group.policy != self.policy:
            return None
        placing = request.placing
        own_hosts = hosts_of(table, [placing]) if placing else set()
        counts = members_by_host(table, group, request)
        full_hosts = [
            host
            for host, count in counts.items()
            if count >= group.max_server_per_host and host not in own_hosts
        ]
        return RowSet(table.rows_of_hosts(full_hosts), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the number of members and the most that are allowed."""
        group = group_of(table, request)
        if group is None:
            return 'does not pass'
        counts = members_by_host(table, group, request)
        count = counts[table.host_at(row)]
        return (
            f'members of the server group on this host: {count}, at most '
            f'{group.max_server_per_host} allowed'
        )
