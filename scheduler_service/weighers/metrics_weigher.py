"""MetricsWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.reports import metric
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings, ratios
from scheduler_service.weighers.base import Rows, Weigher


class MetricsWeigher(Weigher):
    """Weighs by the metrics of ``[metrics] weight_setting``.

    The sum of value x ratio. A host that lacks one fails the request if
    ``required``; else its weight is ``weight_of_unavailable``, unless ratio
    or multiplier is 0: then the metric counts nothing.
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
        """Add the columns up.

        :raises ComputeHostMetricNotFound: a host lacks one that is required
        """
        wanted = ratios(settings.metrics_weight_setting)
        if not wanted:
            return None
        weights = np.zeros(len(table))
        unavailable = np.zeros(len(table), np.bool_)
        chosen = np.zeros(len(table), np.bool_)
        chosen[rows] = True
        for name, ratio in wanted:
            column = metric(table, name)
            missing = chosen & ~column.there
            if missing.any() and settings.metrics_required:
                raise _not_found(table, int(missing.argmax()), name)
            weights += np.where(column.there, column.value, 0.0) * ratio
            if ratio * settings.metrics_weight_multiplier != 0.0:
                unavailable |= missing
        weights[unavailable] = settings.metrics_weight_of_unavailable
        found: Floats = weights[rows]
        return found

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return None where no metric is configured."""
        return EACH_TIME if settings.metrics_weight_setting else None


def _not_found(
    table: HostTable, row: int, name: str
) -> errors.ComputeHostMetricNotFound:
    host, node = table.host_at(row), table.node_at(row)
    return errors.ComputeHostMetricNotFound(
        f'Host {host} ({node}) does not report the metric {name}',
        host=host,
        node=node,
        metric=name,
    )
