"""RetryFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class RetryFilter(HostFilter):
    """Leaves out the nodes that were tried before for the same request.

    Exactly the pairs of host and node that ``retry.hosts`` lists.
    """

    depends = 'request'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up the few that were tried."""
        if request.retry is None or not request.retry.hosts:
            return None
        rows = (
            table.row_of_node(host, node) for host, node in request.retry.hosts
        )
        return ~table.mask_of([row for row in rows if row is not None])

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that it was tried."""
        return 'the host was tried before for this request'
