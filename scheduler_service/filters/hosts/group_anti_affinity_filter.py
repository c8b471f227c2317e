"""The host filter GroupAntiAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.server_groups import (
    HintedHostsFilter,
    hosts_of_hinted_group,
)
from scheduler_service.model import Request


class GroupAntiAffinityFilter(HintedHostsFilter):
    """Rejects hosts that have a member of the group named by ``group``.

    The hint holds the uuid or the name of a server group, whose policy does
    not matter.
    """

    passes = False
    why = 'a member of the group {group} is on this host'

    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        """Return the hosts of the members."""
        return hosts_of_hinted_group(table, request) or None
