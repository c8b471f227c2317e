"""CrossCellWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class CrossCellWeigher(Weigher):
    """Prefers the cell that a move starts in, where it may leave it."""

    multiplier_option = 'cross_cell_move_weight_multiplier'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return 1 in the preferred cell, -1 in others."""
        wanted = request.requested_destination
        if wanted is None or not wanted.allow_cross_cell_move:
            return None
        if not wanted.cell:
            return None
        cells = table.coded['cell_uuid']
        same = cells.codes == cells.code(wanted.cell)
        weights: Floats = np.where(same, 1.0, -1.0)[rows]
        return weights

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the preferred cell."""
        wanted = request.requested_destination
        if wanted is None or not wanted.allow_cross_cell_move:
            return None
        return wanted.cell or None
