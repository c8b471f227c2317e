"""AggregateCoreFilter, AggregateRamFilter and AggregateDiskFilter's ratio."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support.aggregate_numbers import (
    ratio_by_aggregate,
)
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.settings import Settings


class AggregateRatioMixin(CapacityFilter):
    """Mixed in before a capacity filter: aggregates may set the ratio.

    :cvar ratio_key: metadata key; the least of several values counts, and
        one that is no number makes the host's own ratio hold
    """

    ratio_key = ''

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        """Return the limit under the aggregates' ratio where there is one."""
        own = super().limit(table, settings)
        stated = ratio_by_aggregate(table, self.ratio_key)
        if stated is None:
            return own

        def work() -> Floats:
            total = np.asarray(self.total(table), np.float64)
            none = np.isneginf(stated)
            ratio = np.where(none, 1.0, stated)
            with np.errstate(invalid='ignore'):
                return np.where(none, own, total * ratio)

        default = settings.default_ratio(self.resource)
        limit: Floats = table.topology.memoize(
            ('aggregate limit', self.name, default), work
        )
        return limit

    def ratios(
        self, table: HostTable, settings: Settings
    ) -> tuple[str, Floats] | None:
        """Return the ratios that a claim has to be checked under."""
        stated = ratio_by_aggregate(table, self.ratio_key)
        if stated is None:
            return None
        default = settings.default_ratio(self.resource)

        def work() -> Floats:
            own = np.nan_to_num(table.resources[self.resource].ratio, nan=0.0)
            own = np.where(own == 0.0, default, own)
            bad = np.isneginf(stated) | np.isnan(stated)
            return np.where(bad, own, stated)

        ratios: Floats = table.topology.memoize(
            ('claim ratio', self.name, default), work
        )
        return self.resource, ratios
