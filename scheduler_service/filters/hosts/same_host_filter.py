"""The host filter SameHostFilter."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.server_groups import (
    HintedHostsFilter,
    hosts_of,
    instances_of_hint,
)
from scheduler_service.model import Request


class SameHostFilter(HintedHostsFilter):
    """Passes hosts that have any instance named by ``same_host``.

    The hint holds the uuid of one instance or a list of them. Where none of
    them is stored, every host fails.
    """

    once = True
    why = 'no instance named by the hint same_host is on this host'

    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        """Return the hosts of the named instances."""
        uuids = instances_of_hint(request, 'same_host')
        return hosts_of(table, uuids) if uuids else None
