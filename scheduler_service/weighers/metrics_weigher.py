"""The weigher MetricsWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable, metric
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings, ratios
from scheduler_service.weighers.base import Rows, Weigher


class MetricsWeigher(Weigher):
    """Weighs hosts by the metrics of ``[metrics] weight_setting``.

    The weight is the sum of value times ratio. Where a host does not report
    one of the metrics, the request fails with ``required``; without it the
    host's weight is ``weight_of_unavailable``, or, where the ratio or the
    multiplier is 0, the metric is left out of the sum. A host gets the worst
    weight if it reports a metric that is no number.
    """

    multiplier_option = 'metrics_weight_multiplier'
    refuses = True

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Add up the columns of the metrics.

        :raises ComputeHostMetricNotFound: a host among *rows* does not
            report a required metric
        """
        setting = ratios(settings.metrics_weight_setting)
        if not setting:
            return None
        weights = np.zeros(len(table))
        unavailable = np.zeros(len(table), np.bool_)
        weighed = np.zeros(len(table), np.bool_)
        weighed[rows] = True
        for name, ratio in setting:
            column = metric(table, name)
            missing = weighed & ~column.there
            if missing.any() and settings.metrics_required:
                raise _not_reported(table, int(missing.argmax()), name)
            # A product that is too large is infinite, like a host without
            # a number it then has no weight.
            with np.errstate(over='ignore', invalid='ignore'):
                weights += np.where(column.there, column.value, 0.0) * ratio
            if ratio * settings.metrics_weight_multiplier != 0.0:
                unavailable |= missing
        weights[unavailable] = settings.metrics_weight_of_unavailable
        return weights[rows]

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return EACH_TIME if settings.metrics_weight_setting else None


def _not_reported(
    table: HostTable, row: int, name: str
) -> errors.ComputeHostMetricNotFound:
    """Return the error for a host that does not report a metric."""
    host, node = table.host_at(row), table.node_at(row)
    return errors.ComputeHostMetricNotFound(
        f'Host {host} ({node}) does not report the metric {name}',
        host=host,
        node=node,
        metric=name,
    )
