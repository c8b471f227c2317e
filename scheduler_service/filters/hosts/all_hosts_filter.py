"""AllHostsFilter."""

from __future__ import annotations

from scheduler_service.filters.hosts.base import HostFilter


class AllHostsFilter(HostFilter):
    """Passes every host."""

    once = True
    depends = 'topology'
