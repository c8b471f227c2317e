"""Capacity filters whose allocation ratio aggregates may set."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support.aggregate_numbers import (
    ratio_by_aggregate,
)
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.settings import Settings


class AggregateRatioMixin(CapacityFilter):
    """Comes before a capacity filter in the bases of a class.

    The allocation ratio of a host is then the least that its aggregates
    state in their metadata. The host's own ratio counts where they state
    none, and where one of several values is not a number.

    :cvar ratio_key: metadata key of the ratio
    """

    ratio_key: ClassVar[str] = ''

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        """Return the limit under the ratio of the aggregates, float64[n]."""
        own_limit = super().limit(table, settings)
        stated = ratio_by_aggregate(table, self.ratio_key)
        if stated is None:
            return own_limit

        def limits() -> Floats:
            total = np.asarray(self.total(table), np.float64)
            unstated = np.isneginf(stated)
            ratio = np.where(unstated, 1.0, stated)
            return np.where(unstated, own_limit, total * ratio)

        default = settings.default_ratio(self.resource)
        limit: Floats = table.topology.memoize(
            ('aggregate limit', self.name, default), limits
        )
        return limit

    def ratios(
        self, table: HostTable, settings: Settings
    ) -> tuple[str, Floats] | None:
        """Return (resource class, float64[n]): the ratios for claims."""
        stated = ratio_by_aggregate(table, self.ratio_key)
        if stated is None:
            return None
        default = settings.default_ratio(self.resource)

        def claim_ratios() -> Floats:
            own = np.nan_to_num(table.resources[self.resource].ratio, nan=0.0)
            own = np.where(own == 0.0, default, own)
            return np.where(np.isneginf(stated), own, stated)

        ratios: Floats = table.topology.memoize(
            ('claim ratio', self.name, default), claim_ratios
        )
        return self.resource, ratios
