"""ComputeFilter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import Comparison, ComparisonFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ComputeFilter(ComparisonFilter):
    """Passes hosts that are enabled and up."""

    once = True

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Ask that operator and heartbeat both say yes."""
        return (Comparison(table.available(), np.equal, True),)

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
