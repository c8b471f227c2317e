"""AggregateCoreFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.aggregate_capacity import AggregateRatio
from scheduler_service.filters.hosts.core_filter import CoreFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AggregateCoreFilter(AggregateRatio, CoreFilter):
    """CoreFilter with ``cpu_allocation_ratio`` from aggregates' metadata.

    The least of several values; one that is no number, or none at all: the
    host's own ratio.
    """

    ratio_key = 'cpu_allocation_ratio'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Let a ratio that is not comparable (nan) pass, as it always did."""
        passed = super().mask(table, request, settings)
        assert passed is not None
        passed |= np.isnan(self.left(table, settings))
        return passed
