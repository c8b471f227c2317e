"""ServerGroupSoftAffinityWeigher and ServerGroupSoftAntiAffinityWeigher."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class _GroupWeigher(Weigher):
    """Weighs by members of the request's server group on the host."""

    policy = ''
    each = 1.0
    depends = 'request'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return the members' count, of the group's own policy alone."""
        group = table.groups.get(request.instance_group or '')
        if group is None or group.policy != self.policy:
            return None
        found = (table.instances.get(uuid) for uuid in group.members)
        counts = Counter(one.host for one in found if one is not None)
        weights = np.zeros(len(table))
        for host, count in counts.items():
            weights[table.rows_of_host(host)] = self.each * count
        chosen: Floats = weights[rows]
        return chosen


class ServerGroupSoftAffinityWeigher(_GroupWeigher):
    """Prefers hosts with more members of a ``soft-affinity`` group."""

    multiplier_option = 'soft_affinity_weight_multiplier'
    policy = 'soft-affinity'


class ServerGroupSoftAntiAffinityWeigher(_GroupWeigher):
    """Prefers hosts with fewer members of a ``soft-anti-affinity`` group."""

    multiplier_option = 'soft_anti_affinity_weight_multiplier'
    policy = 'soft-anti-affinity'
    each = -1.0
