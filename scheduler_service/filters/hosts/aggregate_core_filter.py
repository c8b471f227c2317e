"""The host filter AggregateCoreFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.capacity import (
    AggregateRatioMixin,
)
from scheduler_service.filters.hosts.core_filter import CoreFilter
from scheduler_service.settings import Settings


class AggregateCoreFilter(AggregateRatioMixin, CoreFilter):
    """CoreFilter with ``cpu_allocation_ratio`` from aggregate metadata.

    The least value counts where several aggregates of a host set one. Where
    none does, or one of the values is not a number, the host's own ratio
    counts.
    """

    ratio_key = 'cpu_allocation_ratio'

    def exempt(self, table: HostTable, settings: Settings) -> Mask | None:
        """Return hosts that report no vCPUs, and those whose ratio is nan.

        The rule rejects hosts where ``remaining < requested``, and that is
        false for nan.
        """
        exempt: Mask = (self.total(table) == 0) | np.isnan(
            self.limit(table, settings)
        )
        return exempt
