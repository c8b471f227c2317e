"""The host filter DifferentHostFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.server_groups import (
    HintedHostsFilter,
    hosts_of,
    instances_of_hint,
)
from scheduler_service.model import Request


class DifferentHostFilter(HintedHostsFilter):
    """Rejects hosts that have any instance named by ``different_host``.

    The hint holds the uuid of one instance or a list of them. Instances that
    are not stored do not matter.
    """

    once = True
    passes = False
    why = 'an instance named by the hint different_host is on this host'

    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        """Return the hosts of the named instances."""
        uuids = instances_of_hint(request, 'different_host')
        return hosts_of(table, uuids) if uuids else None
