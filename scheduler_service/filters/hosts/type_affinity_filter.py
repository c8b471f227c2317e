"""The host filter TypeAffinityFilter."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import Comparison, ComparisonFilter
from scheduler_service.filters.support.flavor_column import flavor_column
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class TypeAffinityFilter(ComparisonFilter):
    """Passes hosts whose instances all have the same flavor as the request.

    Flavors are compared by their ids. A host without instances passes.
    """

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the flavor of each host's instances with the request's."""
        flavors = flavor_column(table)
        return (
            Comparison(
                flavors.values, flavors.has_no_other, request.flavor.flavorid
            ),
        )

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
