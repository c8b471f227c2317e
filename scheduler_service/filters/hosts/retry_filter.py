"""The host filter RetryFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class RetryFilter(RowFilter):
    """Rejects the nodes that were already tried for the same request.

    ``retry.hosts`` lists them as pairs of host and node; another node of the
    same host passes.
    """

    why = 'the host was already tried for this request'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        if request.retry is None or not request.retry.hosts:
            return None
        rows = table.rows_of_nodes(request.retry.hosts)
        return RowSet(np.unique(rows), passes=False)
