"""The weigher PCIWeigher."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher

_MAX_WEIGHT = 100.0
_MAX_DEVICES = 99.0


class PCIWeigher(Weigher):
    """Prefers hosts with fewer free PCI devices.

    That keeps hosts with devices free for the requests that need them. The
    weight is 100 less the number of free devices, of which 99 count at most.
    A host whose pools cannot be read gets the worst weight.
    """

    multiplier_option = 'pci_weight_multiplier'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return 100 less the free devices, 1 to 100, or NaN."""
        pools = decoded(table, 'pci_device_pools')
        free = np.array(
            [_free_devices(value) for value in pools.values], np.float64
        )
        by_value = _MAX_WEIGHT - np.minimum(free, _MAX_DEVICES)
        weights: Floats = pools.expand(by_value)
        return weights[rows]

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return ()


def _free_devices(pools: Any) -> float:
    """Return how many devices a host's pools have, NaN if that is unknown."""
    try:
        return float(sum(int(pool.get('count') or 0) for pool in pools or ()))
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return math.nan
