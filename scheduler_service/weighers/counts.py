"""Weighers of plain columns: I/O operations, failures, instances, versions."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class _ColumnWeigher(Weigher):
    """Weighs by a column of whole numbers."""

    column = ''
    depends = 'row'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return the column; where it is all zero it says nothing."""
        counts = table.number(self.column)
        if not counts.any():
            return None
        return counts[rows].astype(np.float64)


class IoOpsWeigher(_ColumnWeigher):
    """Weighs by I/O operations; by default fewer are better."""

    column = 'num_io_ops'
    multiplier_option = 'io_ops_weight_multiplier'
    minval = 0.0


class BuildFailureWeigher(_ColumnWeigher):
    """Shuns hosts with failed builds, normalised, however few they are."""

    column = 'failed_builds'
    multiplier_option = 'build_failure_weight_multiplier'
    sign = -1.0


class NumInstancesWeigher(_ColumnWeigher):
    """Weighs by instances: a positive multiplier packs, a negative spreads."""

    column = 'num_instances'
    multiplier_option = 'num_instances_weight_multiplier'


class HypervisorVersionWeigher(Weigher):
    """Prefers newer hypervisors."""

    multiplier_option = 'hypervisor_version_weight_multiplier'
    depends = 'topology'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return the version, 0 where a host does not say."""
        versions = table.coded['hypervisor_version']
        by_value = np.array([v or 0 for v in versions.values], np.float64)
        weights: Floats = versions.spread(by_value)[rows]
        return weights
