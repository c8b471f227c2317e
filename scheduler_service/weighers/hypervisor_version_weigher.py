"""The weigher HypervisorVersionWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class HypervisorVersionWeigher(Weigher):
    """Prefers hosts with newer hypervisors."""

    multiplier_option = 'hypervisor_version_weight_multiplier'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return the version as a number, 0 where a host reports none."""
        versions = table.coded['hypervisor_version']
        by_value = np.array(
            [version or 0 for version in versions.values], np.float64
        )
        weights: Floats = versions.expand(by_value)[rows]
        return weights

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return ()
