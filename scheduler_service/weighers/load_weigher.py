"""Weighers on what is free of a host, and on its counts."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings, ratios
from scheduler_service.weighers.base import ColumnWeigher


class CPUWeigher(ColumnWeigher):
    """Prefers hosts with more vCPUs left.

    ``vcpus x cpu_allocation_ratio - vcpus_used``; a negative result counts
    as 0.
    """

    multiplier_option = 'cpu_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:

        def make() -> Formula:
            limit = table.capacity('VCPU', settings)
            used = table.resources['VCPU'].used
            return lambda rows: np.maximum(limit[rows] - used[rows], 0.0)

        ratio = settings.default_ratio('VCPU')
        return table.load_column((self.name, ratio), 'VCPU', make)


class RAMWeigher(ColumnWeigher):
    """Prefers hosts with more free memory.

    ``memory_mb - memory_mb_used``, without the allocation ratio; a negative
    result counts as 0.
    """

    multiplier_option = 'ram_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:

        def make() -> Formula:
            ram = table.resources['MEMORY_MB']
            total, used = ram.total, ram.used
            return lambda rows: np.maximum(total[rows] - used[rows], 0.0)

        return table.load_column(self.name, 'MEMORY_MB', make)


class DiskWeigher(ColumnWeigher):
    """Prefers hosts with more free disk.

    ``local_gb - local_gb_used``, or ``disk_available_least`` where that is
    less, in MB and without the allocation ratio; a negative result counts as
    0.
    """

    multiplier_option = 'disk_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:

        def make() -> Formula:
            free = table.free_disk_formula()
            return lambda rows: np.maximum(free(rows), 0.0)

        return table.load_column(self.name, 'DISK_GB', make)


class IoOpsWeigher(ColumnWeigher):
    """Weighs hosts by their I/O operations.

    The default multiplier is negative: hosts with fewer operations are
    preferred.
    """

    multiplier_option = 'io_ops_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:
        return table.count_column('num_io_ops')


class NumInstancesWeigher(ColumnWeigher):
    """Weighs hosts by their number of instances.

    A positive multiplier packs instances, a negative one spreads them. The
    default is 0.
    """

    multiplier_option = 'num_instances_weight_multiplier'

    def column(self, table: HostTable, settings: Settings) -> Floats:
        return table.count_column('num_instances')


class ResourceWeigher(ColumnWeigher):
    """Weighs hosts by what is free of any resource classes.

    ``resource_weight_setting`` names the classes, each with a ratio. The
    weight is the sum of what is free of each, under the host's allocation
    ratio, times the ratio of the setting; a negative amount counts as 0.
    """

    multiplier_option = 'resource_weight_multiplier'

    def column(self, table: HostTable, settings: Settings) -> Floats:
        ratio_of = dict(ratios(settings.resource_weight_setting))
        classes = [name for name in ratio_of if name in table.resources]

        def make() -> Formula:
            nothing = np.zeros(len(table))
            parts = [
                (
                    ratio_of[name],
                    table.capacity(name, settings),
                    table.resources[name].used,
                )
                for name in classes
            ]
            return lambda rows: sum(
                (
                    ratio * np.maximum(limit[rows] - used[rows], 0.0)
                    for ratio, limit, used in parts
                ),
                nothing[rows],
            )

        key = (
            self.name,
            tuple(
                (name, ratio_of[name], settings.default_ratio(name))
                for name in classes
            ),
        )
        return table.load.get(key, classes, make)

    def multiplier(self, settings: Settings) -> float:
        """Return the configured multiplier, 0 where no class is set."""
        if not settings.resource_weight_setting:
            return 0.0
        return super().multiplier(settings)
