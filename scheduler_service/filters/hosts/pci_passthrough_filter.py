"""The host filter PciPassthroughFilter."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable, decoded
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import (
    KeyFilter,
    where_readable,
    why_unreadable,
)
from scheduler_service.filters.devices import (
    free_devices,
    has_devices,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class PciPassthroughFilter(KeyFilter):
    """Passes hosts that have all requested PCI devices at once.

    The extra spec ``pci_passthrough:alias`` holds ``name:count``, several
    with commas between them; ``[pci] alias`` says which devices a name stands
    for. Physical functions and vDPA devices are given only to aliases with
    that very type, remote-managed devices to none. A host
    whose pools cannot be read fails.
    """

    def passing(self, table: HostTable, key: Any) -> Mask:
        return decoded(table, 'pci_device_pools').mask_where(
            where_readable(lambda pools: has_devices(pools or [], key))
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return request.devices(settings) or None

    def has_devices(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> bool:
        pools = decoded(table, 'pci_device_pools').at(row) or []
        devices = request.devices(settings)
        return where_readable(has_devices)(pools, devices)

    def failure(self, table: HostTable, row: int, key: Any) -> str:
        pools = decoded(table, 'pci_device_pools').at(row) or []
        why = why_unreadable(has_devices, 'pci_device_pools', pools, key)
        if why:
            return why
        requested = ', '.join(f'{each.name}:{each.needed}' for each in key)
        return (
            f'PCI devices {requested} requested, the host has '
            f'{free_devices(pools)} of any kind free'
        )
