"""The host filter DifferentHostFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.filters.server_groups import (
    hosts_of,
    instances_of_hint,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class DifferentHostFilter(RowFilter):
    """Rejects hosts that have any instance named by ``different_host``.

    The hint holds the uuid of one instance or a list of them. Instances that
    are not known do not matter.
    """

    once = True

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Reject the hosts of the named instances."""
        uuids = instances_of_hint(request, 'different_host')
        if not uuids:
            return None
        rows = table.rows_of_hosts(hosts_of(table, uuids))
        return RowSet(rows, passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that a named instance is on the host."""
        return 'an instance named by the hint different_host is on this host'
