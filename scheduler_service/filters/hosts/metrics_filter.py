"""MetricsFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import metric
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings, ratios


class MetricsFilter(HostFilter):
    """Passes hosts that report every metric of the ``weight_setting``."""

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """AND the columns of who reports what."""
        names = [name for name, _ in ratios(settings.metrics_weight_setting)]
        if not names:
            return None
        passed = np.ones(len(table), np.bool_)
        for name in names:
            passed &= metric(table, name).there
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the metrics that are needed."""
        return settings.metrics_weight_setting or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name what is missing."""
        missing = [
            name
            for name, _ in ratios(settings.metrics_weight_setting)
            if not metric(table, name).there[row]
        ]
        return f'the host does not report {", ".join(missing)}'
