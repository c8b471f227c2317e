"""The weigher IoOpsWeigher."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher


class IoOpsWeigher(ColumnWeigher):
    """Weighs hosts by their I/O operations.

    The default multiplier is negative: hosts with fewer operations are
    preferred.
    """

    multiplier_option = 'io_ops_weight_multiplier'
    minval = 0.0

    def column(self, table: HostTable, settings: Settings) -> Floats:
        """Return the operations, those of builds in progress included."""
        return table.count_column('num_io_ops')
