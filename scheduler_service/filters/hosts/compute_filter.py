"""ComputeFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ComputeFilter(HostFilter):
    """Passes hosts that are enabled and up."""

    once = True
    depends = 'row'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Pass where the operator and the heartbeat both say yes."""
        passed: Mask = table.number('enabled') & table.number('up')
        return passed

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say which of the two it is, with the operator's reason."""
        if table.number('enabled')[row]:
            return 'the host is down'
        why = table.coded['disabled_reason'].at(row)
        return (
            f'the host is disabled ({why})'
            if why
            else ('the host is disabled')
        )
