"""PCIWeigher."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher

_MOST = 100.0


class PCIWeigher(Weigher):
    """Prefers hosts with fewer free PCI devices, to keep the others free."""

    multiplier_option = 'pci_weight_multiplier'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return 100 less the devices free, at most 99 of them."""
        pools = decoded(table, 'pci_device_pools')
        free = np.array([_free(one) for one in pools.values], np.float64)
        weights: Floats = pools.expand(_MOST - np.minimum(free, _MOST - 1))
        return weights[rows]

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the same for every request."""
        return ()


def _free(pools: Any) -> int:
    return sum(int(pool.get('count') or 0) for pool in pools or ())
