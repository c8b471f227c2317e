"""Whether hosts are enabled, for pods that a kube-scheduler sends.

Stateless: any thread may ask, on a table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.load import Formula
from scheduler_service.filters.base import Comparison
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.kube.node_reader import is_judged_by_scheduler
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class PodComputeFilter(ComputeFilter):
    """Leaves hosts that no operator of this service disabled.

    A kube-scheduler has judged the state and the taints of nodes before it
    calls, by what each pod tolerates: agents have to run on nodes that are
    not ready yet, and on cordoned ones.
    """

    name = 'ComputeFilter'

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the column of hosts that are disabled by nobody here."""

        def make() -> Formula:
            enabled = table.number('enabled')
            judged = table.coded['disabled_reason'].mask_where(
                is_judged_by_scheduler
            )
            return lambda rows: enabled[rows] | judged[rows]

        column = table.load_column('enabled for pods', 'enabled', make)
        return (Comparison(column, np.equal, True),)
