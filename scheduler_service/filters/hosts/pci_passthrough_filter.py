"""The host filter PciPassthroughFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.pci_devices import (
    configured_aliases,
    free_devices,
    has_devices,
    requested_devices,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class PciPassthroughFilter(HostFilter):
    """Passes hosts that have all requested PCI devices at once.

    The extra spec ``pci_passthrough:alias`` holds ``name:count``, several
    with commas between them; ``[pci] alias`` says which devices a name stands
    for. Physical functions and vDPA devices are given only to aliases with
    that very type, remote-managed devices to none.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct list of device pools once."""
        requested = requested_devices(request)
        if not requested:
            return None
        aliases = configured_aliases(settings)
        unknown = [alias for alias, _ in requested if alias not in aliases]
        if unknown:
            raise ValueError(f'no [pci] alias is named {", ".join(unknown)}')
        return decoded(table, 'pci_device_pools').mask_where(
            lambda pools: has_devices(pools or [], requested, aliases)
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the requested devices, and what their aliases stand for."""
        requested = requested_devices(request)
        return (requested, settings.pci_aliases) if requested else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the requested devices, and how many of any kind are free."""
        pools = decoded(table, 'pci_device_pools').at(row) or []
        requested = ', '.join(
            f'{alias}:{count}' for alias, count in requested_devices(request)
        )
        return (
            f'PCI devices {requested} requested, the host has '
            f'{free_devices(pools)} of any kind free'
        )
