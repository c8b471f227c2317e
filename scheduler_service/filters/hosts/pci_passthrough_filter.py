"""The host filter PciPassthroughFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.pci_devices import (
    free_devices,
    has_devices,
    wanted_devices,
)
from scheduler_service.filters.support.unreadable import (
    where_readable,
    why_unreadable,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class PciPassthroughFilter(HostFilter):
    """Passes hosts that have all requested PCI devices at once.

    The extra spec ``pci_passthrough:alias`` holds ``name:count``, several
    with commas between them; ``[pci] alias`` says which devices a name stands
    for. Physical functions and vDPA devices are given only to aliases with
    that very type, remote-managed devices to none. A host
    whose pools cannot be read fails.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct list of device pools once."""
        wanted = wanted_devices(request, settings)
        if not wanted:
            return None
        return decoded(table, 'pci_device_pools').mask_where(
            where_readable(lambda pools: has_devices(pools or [], wanted))
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the devices that are wanted."""
        return wanted_devices(request, settings) or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the requested devices, and how many of any kind are free."""
        pools = decoded(table, 'pci_device_pools').at(row) or []
        wanted = wanted_devices(request, settings)
        why = why_unreadable(
            lambda found: has_devices(found, wanted),
            'pci_device_pools',
            pools,
        )
        if why:
            return why
        requested = ', '.join(f'{one.name}:{one.needed}' for one in wanted)
        return (
            f'PCI devices {requested} requested, the host has '
            f'{free_devices(pools)} of any kind free'
        )
