"""The host filter SameHostFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.filters.server_groups import (
    hosts_of,
    instances_of_hint,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class SameHostFilter(RowFilter):
    """Passes hosts that have any instance named by ``same_host``.

    The hint holds the uuid of one instance or a list of them. Where none of
    them is known, every host fails.
    """

    once = True

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Pass the hosts of the named instances."""
        uuids = instances_of_hint(request, 'same_host')
        if not uuids:
            return None
        rows = table.rows_of_hosts(hosts_of(table, uuids))
        return RowSet(rows, passes=True)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that no named instance is on the host."""
        return 'no instance named by the hint same_host is on this host'
