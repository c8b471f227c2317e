"""AggregateCoreFilter, AggregateRamFilter and AggregateDiskFilter's ratio."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.filters.hosts.capacity import CapacityFilter
from scheduler_service.filters.hosts.numbers import ratio_by_aggregate
from scheduler_service.settings import Settings


class AggregateRatio(CapacityFilter):
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
        total = np.asarray(self.total(table), np.float64)
        none = np.isneginf(stated)
        ratio = np.where(none, 1.0, stated)
        with np.errstate(invalid='ignore'):
            limit: Floats = np.where(none, own, total * ratio)
        return limit

    def ratios(
        self, table: HostTable, settings: Settings
    ) -> tuple[str, Floats] | None:
        """Return the ratios that a claim has to be checked under."""
        stated = ratio_by_aggregate(table, self.ratio_key)
        if stated is None:
            return None
        columns = table.resources[self.resource]
        own = np.nan_to_num(columns.ratio, nan=0.0)
        own = np.where(own == 0.0, settings.default_ratio(self.resource), own)
        bad = np.isneginf(stated) | np.isnan(stated)
        return self.resource, np.where(bad, own, stated)
