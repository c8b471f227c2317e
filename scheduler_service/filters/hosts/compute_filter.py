"""The host filter ComputeFilter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import Comparison, ComparisonFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ComputeFilter(ComparisonFilter):
    """Passes hosts that are enabled and up.

    Operators enable and disable hosts; a host is up as long as its
    heartbeats arrive.
    """

    once = True

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        return (Comparison(table.available(), np.equal, True),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        if table.number('enabled')[row]:
            return 'the host is down'
        disabled_reason = table.coded['disabled_reason'].at(row)
        if disabled_reason:
            return f'the host is disabled ({disabled_reason})'
        return 'the host is disabled'
