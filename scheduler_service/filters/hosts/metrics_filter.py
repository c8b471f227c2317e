"""The host filter MetricsFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable, metric
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings, ratios


class MetricsFilter(HostFilter):
    """Passes hosts that report every metric of ``weight_setting``.

    The option is in the group ``[metrics]``; ratios do not matter here.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        names = _metric_names(settings)
        if not names:
            return None
        passed = np.ones(len(table), np.bool_)
        for name in names:
            passed &= metric(table, name).there
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return settings.metrics_weight_setting or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        missing = [
            name
            for name in _metric_names(settings)
            if not metric(table, name).there[row]
        ]
        return f'the host does not report the metrics {", ".join(missing)}'


def _metric_names(settings: Settings) -> list[str]:
    return [name for name, _ in ratios(settings.metrics_weight_setting)]
