"""AggregateCoreFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.core_filter import CoreFilter
from scheduler_service.filters.support.aggregate_ratio import (
    AggregateRatioMixin,
)
from scheduler_service.settings import Settings


class AggregateCoreFilter(AggregateRatioMixin, CoreFilter):
    """CoreFilter with ``cpu_allocation_ratio`` from aggregates' metadata.

    The least of several values; one that is no number, or none at all: the
    host's own ratio.
    """

    ratio_key = 'cpu_allocation_ratio'

    def exempt(self, table: HostTable, settings: Settings) -> Mask | None:
        """Return hosts without figures, and those whose ratio is ``nan``.

        A ratio that cannot be compared lets the host pass.
        """
        without = self.total(table) == 0
        exempt: Mask = without | np.isnan(self.limit(table, settings))
        return exempt
