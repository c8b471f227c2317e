"""RetryFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import RowFilter, RowSet
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class RetryFilter(RowFilter):
    """Leaves out the nodes that were tried before for the same request.

    Exactly the pairs of host and node that ``retry.hosts`` lists.
    """

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up the few that were tried."""
        if request.retry is None or not request.retry.hosts:
            return None
        tried = (
            table.row_of_node(host, node) for host, node in request.retry.hosts
        )
        rows = [row for row in tried if row is not None]
        return RowSet(np.unique(np.array(rows, np.intp)), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that it was tried."""
        return 'the host was tried before for this request'
