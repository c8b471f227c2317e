"""TypeAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class TypeAffinityFilter(HostFilter):
    """Passes hosts all of whose instances have the same flavor, by its id."""

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Visit the instances, not the hosts."""
        wanted = request.flavor.flavorid
        others = {
            one.host for one in table.instances if one.flavorid != wanted
        }
        return ~table.mask_of(table.rows_of_hosts(others))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the other flavors."""
        there = table.instances.on_host(table.host_at(row))
        told = sorted({str(one.flavorid) for one in there})
        return (
            f'instances of the flavors {", ".join(told)} are here, '
            f'{request.flavor.flavorid} is asked'
        )
