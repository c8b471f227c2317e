"""The weigher CrossCellWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher


class CrossCellWeigher(Weigher):
    """Prefers hosts in the cell that the request names.

    A move that may cross cells names the cell that the instance is in. Other
    requests are not weighed.
    """

    multiplier_option = 'cross_cell_move_weight_multiplier'

    def weights(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Floats | None:
        cell = self.weight_key(table, request, settings)
        if cell is None:
            return None
        cells = table.coded['cell_uuid']
        return np.where(cells.codes == cells.code(cell), 1.0, -1.0)

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        destination = request.requested_destination
        if destination is None or not destination.allow_cross_cell_move:
            return None
        return destination.cell or None
