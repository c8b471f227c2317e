"""The host filter PciPassthroughFilter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.unreadable import (
    reading,
    refusal,
    spec_path,
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
        devices = requested_devices(request, settings)
        if not devices:
            return None
        return decoded(table, 'pci_device_pools').mask_where(
            where_readable(lambda pools: has_devices(pools or [], devices))
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the requested devices."""
        return requested_devices(request, settings) or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the requested devices, and how many of any kind are free."""
        pools = decoded(table, 'pci_device_pools').at(row) or []
        devices = requested_devices(request, settings)
        why = why_unreadable(
            lambda free: has_devices(free, devices),
            'pci_device_pools',
            pools,
        )
        if why:
            return why
        requested = ', '.join(
            f'{device.name}:{device.needed}' for device in devices
        )
        return (
            f'PCI devices {requested} requested, the host has '
            f'{free_devices(pools)} of any kind free'
        )


# Device types that only a request for that very type is given.
_ON_DEMAND = frozenset(('type-PF', 'vdpa'))
ALIAS_SPEC = 'pci_passthrough:alias'
# Properties that a device has to have: (name, value) pairs in order.
Properties = tuple[tuple[str, str | None], ...]
_ALIAS_KEYS = {
    'vendor_id': 'vendor_id',
    'product_id': 'product_id',
    'device_type': 'dev_type',
}


class DeviceRequest(NamedTuple):
    """A request for devices of one kind.

    :ivar alternatives: a device has to match one of them
    """

    name: str
    needed: int
    alternatives: tuple[Properties, ...]


def requested_devices(
    request: Request, settings: Settings
) -> tuple[DeviceRequest, ...]:
    """Return the devices of a request.

    ``pci_requests``, or else the devices of the aliases that the flavor names.

    :raises InvalidRequest: an alias is not configured, or a count is no
        number
    """
    if request.pci_requests:
        return tuple(
            DeviceRequest(
                device.name or 'devices',
                device.count,
                tuple(
                    tuple(sorted(each.items(), key=lambda pair: pair[0]))
                    for each in device.alternatives
                ),
            )
            for device in request.pci_requests
        )
    named = _named_devices(request)
    if not named:
        return ()
    aliases = configured_aliases(settings)
    unknown = [alias for alias, _ in named if alias not in aliases]
    if unknown:
        raise refusal(
            spec_path(ALIAS_SPEC), 'names of [pci] alias', ', '.join(unknown)
        )
    return tuple(
        DeviceRequest(name, count, (_properties(aliases[name]),))
        for name, count in named
    )


def _properties(alias: Mapping[str, Any]) -> Properties:
    """Return the properties that an alias requires of a device."""
    return tuple(
        sorted(
            (name, alias[key])
            for key, name in _ALIAS_KEYS.items()
            if key in alias and (alias[key] or key != 'device_type')
        )
    )


def _named_devices(request: Request) -> list[tuple[str, int]]:
    """Return (alias, count) pairs of ``pci_passthrough:alias``.

    :raises InvalidRequest: a count is not a number
    """
    text = request.flavor.extra_specs.get(ALIAS_SPEC)
    devices: list[tuple[str, int]] = []
    if not text:
        return devices
    with reading(spec_path(ALIAS_SPEC), 'NAME:COUNT', text):
        for part in text.split(','):
            alias, _, count = part.strip().partition(':')
            devices.append((alias, int(count or 1)))
    return devices


def configured_aliases(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the aliases of ``[pci] alias`` by name."""
    aliases = (msgspec.json.decode(text) for text in settings.pci_aliases)
    return {alias['name']: alias for alias in aliases}


def has_devices(
    pools: Sequence[Mapping[str, Any]], devices: Sequence[DeviceRequest]
) -> bool:
    """Say whether a host's pools have all requested devices at once.

    Pools with few tags are taken first: others may be needed for their tags.
    """
    pools = sorted(pools, key=lambda pool: len(pool.get('tags') or ()))
    free = [_count(pool) for pool in pools]
    for _, count, alternatives in devices:
        needed = count
        for index, pool in enumerate(pools):
            if needed and any(
                _matches(pool, alternative) for alternative in alternatives
            ):
                taken = min(needed, free[index])
                free[index] -= taken
                needed -= taken
        if needed:
            return False
    return True


def free_devices(pools: Sequence[Mapping[str, Any]]) -> int:
    """Return how many devices of any kind a host's pools have."""
    return sum(_count(pool) for pool in pools)


def _count(pool: Mapping[str, Any]) -> int:
    return int(pool.get('count') or 0)


def _matches(pool: Mapping[str, Any], properties: Properties) -> bool:
    """Say whether the devices of a pool have all properties.

    The tags of a pool are properties, too. A pool without a device type may
    have devices of any type.
    """
    tags = pool.get('tags') or {}
    required = dict(properties)
    device_type = pool.get('dev_type', tags.get('dev_type'))
    required_type = required.pop('dev_type', None)
    if device_type in _ON_DEMAND and required_type != device_type:
        return False
    if required_type and device_type not in (None, required_type):
        return False
    remote = pool.get('remote_managed', tags.get('remote_managed'))
    if _is_true(remote) != _is_true(required.pop('remote_managed', None)):
        return False
    return all(
        _folded(pool.get(key, tags.get(key))) == _folded(value)
        for key, value in required.items()
    )


def _folded(value: Any) -> Any:
    """Return a value as it is compared: text without regard to its case."""
    return value.lower() if isinstance(value, str) else value


def _is_true(value: Any) -> bool:
    return str(value).lower() == 'true'
