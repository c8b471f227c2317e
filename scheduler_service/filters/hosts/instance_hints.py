"""DifferentHostFilter and SameHostFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


def _named(request: Request, hint: str) -> list[str]:
    """Return the instances that a hint names, one or a list."""
    value = request.hint(hint)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)]


def hosts_of(table: HostTable, instances: list[str]) -> set[str]:
    """Return the service hosts of the instances that are known."""
    found = (table.instances.get(uuid) for uuid in instances)
    return {one.host for one in found if one is not None}


class DifferentHostFilter(HostFilter):
    """Leaves out hosts with any instance that ``different_host`` names."""

    depends = 'request'

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up where the few instances are."""
        named = _named(request, 'different_host')
        if not named:
            return None
        hosts = hosts_of(table, named)
        return ~table.mask_of(table.rows_of_hosts(hosts))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that one is there."""
        return 'an instance of the hint different_host is on this host'


class SameHostFilter(HostFilter):
    """Passes hosts with any instance that ``same_host`` names."""

    depends = 'request'

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up where the few instances are."""
        named = _named(request, 'same_host')
        if not named:
            return None
        return table.mask_of(table.rows_of_hosts(hosts_of(table, named)))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that none is there."""
        return 'no instance of the hint same_host is on this host'
