"""The host filter ServerGroupAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.filters.server_groups import (
    group_of,
    members_by_host,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ServerGroupAffinityFilter(RowFilter):
    """Keeps the members of an ``affinity`` server group on their hosts.

    Passes hosts that have a member. Every host passes as long as no member
    is on any host, and where the group has another policy.
    """

    policy = 'affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Pass the hosts of the members."""
        group = group_of(table, request)
        if group is None or group.policy != self.policy:
            return None
        hosts = set(members_by_host(table, group, request))
        if not hosts:
            return None
        return RowSet(table.rows_of_hosts(hosts), passes=True)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name hosts of the members, five at most."""
        group = group_of(table, request)
        hosts = sorted(members_by_host(table, group, request)) if group else []
        return (
            f'the members of the server group are on {", ".join(hosts[:5])}, '
            'not on this host'
        )
