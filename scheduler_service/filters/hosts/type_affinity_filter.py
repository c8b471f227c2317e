"""The host filter TypeAffinityFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class TypeAffinityFilter(HostFilter):
    """Passes hosts whose instances all have the same flavor as the request.

    Flavors are compared by their ids. A host without instances passes.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Reject the hosts of instances with other flavors."""
        flavor_id = request.flavor.flavorid
        other_hosts = {
            instance.host
            for instance in table.instances
            if instance.flavorid != flavor_id
        }
        return ~table.mask_of(table.rows_of_hosts(other_hosts))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the flavors of the host's instances."""
        instances = table.instances.on_host(table.host_at(row))
        flavors = sorted({str(instance.flavorid) for instance in instances})
        return (
            f'the host has instances of the flavors {", ".join(flavors)}; the '
            f'request has {request.flavor.flavorid}'
        )
