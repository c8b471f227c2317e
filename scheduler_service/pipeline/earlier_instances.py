"""The mandatory filter on what earlier instances of a request take.

Of NUMA cells, pages and PCI devices, which only hosts count, once they build
the instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters import host_attributes, numa
from scheduler_service.filters.base import HostFilter, RowFilter, RowSet
from scheduler_service.filters.devices import requested_devices
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.filters.hosts.pci_passthrough_filter import (
    PciPassthroughFilter,
)
from scheduler_service.filters.numa_placement import (
    HostReports,
    Needs,
    with_instance,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class EarlierInstances(RowFilter):
    """Rejects hosts that earlier instances of the request fill.

    :param filters: the configured filters; NUMA cells and devices count only
        with the filter that checks them
    """

    name = 'earlier_instances'

    def __init__(self, filters: Sequence[HostFilter]) -> None:
        self._cells = any(
            isinstance(each, NUMATopologyFilter) for each in filters
        )
        self._devices = any(
            isinstance(each, PciPassthroughFilter) for each in filters
        )

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Compare the hosts on which instances of the request are assumed."""
        if not table.builds:
            return None
        needs = self._needs(request, settings)
        if needs is None:
            return None
        full = [
            row
            for row, count in Counter(table.builds).items()
            if not _fits(table, row, needs, count + 1, settings)
        ]
        return RowSet(np.array(full, np.intp), passes=False)

    def _needs(self, request: Request, settings: Settings) -> Needs | None:
        """Return what counts of an instance; None: nothing."""
        guest = numa.guest_topology(request) if self._cells else None
        is_near = guest is not None and bool(request.pci_requests)
        devices = (
            requested_devices(request, settings)
            if self._devices or is_near
            else ()
        )
        if not request.pci_requests:
            # Aliases do not say any distance.
            devices = tuple(
                device._replace(policy='preferred') for device in devices
            )
        return Needs(guest, devices) if guest or devices else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the number of earlier instances."""
        count = (table.builds or []).count(row)
        return (
            f'the NUMA cells or PCI devices do not suffice for another '
            f'instance beside {count} of the same request'
        )


def _fits(
    table: HostTable, row: int, needs: Needs, count: int, settings: Settings
) -> bool:
    """Say whether so many instances fit the cells and devices of a host."""
    cpu_ratio, ram_ratio = (
        host_attributes.ratios(table, name, settings).at(row)
        for name in ('cpu_allocation_ratio', 'ram_allocation_ratio')
    )
    host: HostReports | None = HostReports(
        table.coded['numa_topology'].at(row),
        table.coded['pci_device_pools'].at(row),
        cpu_ratio,
        ram_ratio,
    )
    for _ in range(count):
        host = host and with_instance(host, needs)
    return host is not None
