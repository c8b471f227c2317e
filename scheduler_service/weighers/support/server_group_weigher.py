"""The base class of weighers by the members of a server group."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class ServerGroupWeigher(Weigher):
    """Weighs hosts by the members of the request's server group on them.

    :cvar policy: policy of the server groups that are weighed
    :cvar weight_per_member: raw weight of one member
    """

    policy: ClassVar[str] = ''
    weight_per_member: ClassVar[float] = 1.0

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return the members times their weight; None for other policies."""
        group = table.groups.get(request.instance_group or '')
        if group is None or group.policy != self.policy:
            return None
        members = (table.instances.get(uuid) for uuid in group.members)
        counts = Counter(
            member.host for member in members if member is not None
        )
        for host in request.group_hosts:
            counts.setdefault(host, 1)
        weights = np.zeros(len(table))
        for host, count in counts.items():
            weights[table.rows_of_host(host)] = self.weight_per_member * count
        selected: Floats = weights[rows]
        return selected

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return None where the request has no server group."""
        return EACH_TIME if request.instance_group else None
