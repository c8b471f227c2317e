"""The base class of weighers by the members of a server group."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class ServerGroupWeigher(Weigher):
    """Weighs by members of the request's server group on the host."""

    policy = ''
    each = 1.0

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

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return None where the request joins no group."""
        return EACH_TIME if request.instance_group else None
