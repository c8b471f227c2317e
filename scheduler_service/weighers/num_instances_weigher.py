"""The weigher NumInstancesWeigher."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher


class NumInstancesWeigher(ColumnWeigher):
    """Weighs hosts by their number of instances.

    A positive multiplier packs instances, a negative one spreads them. The
    default is 0.
    """

    multiplier_option = 'num_instances_weight_multiplier'

    def column(self, table: HostTable, settings: Settings) -> Floats:
        """Return the count of instances."""
        return table.count_column('num_instances')
