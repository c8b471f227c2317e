"""PCI devices: the aliases that a flavor names, and pools that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service.model import Request
from scheduler_service.settings import Settings

# Device types that only a request for that very type is given.
_ON_DEMAND = frozenset(('type-PF', 'vdpa'))
ALIAS_SPEC = 'pci_passthrough:alias'
Requested = tuple[tuple[str, int], ...]


def requested_devices(request: Request) -> Requested:
    """Return (alias, count) pairs of ``pci_passthrough:alias``.

    :raises ValueError: a count is not a number
    """
    text = request.flavor.extra_specs.get(ALIAS_SPEC)
    if not text:
        return ()
    devices = []
    for part in text.split(','):
        alias, _, count = part.strip().partition(':')
        devices.append((alias, int(count or 1)))
    return tuple(devices)


def configured_aliases(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the aliases of ``[pci] alias`` by name."""
    aliases = (msgspec.json.decode(text) for text in settings.pci_aliases)
    return {alias['name']: alias for alias in aliases}


def has_devices(
    pools: Sequence[Mapping[str, Any]],
    requested: Requested,
    aliases: Mapping[str, Mapping[str, Any]],
) -> bool:
    """Say whether a host's pools have all requested devices at once."""
    free = [_count(pool) for pool in pools]
    for alias, needed in requested:
        for index, pool in enumerate(pools):
            if needed and _matches(pool, aliases[alias]):
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


def _matches(pool: Mapping[str, Any], alias: Mapping[str, Any]) -> bool:
    """Say whether the devices of a pool are what an alias stands for."""
    tags = pool.get('tags') or {}
    device_type = pool.get('dev_type', tags.get('dev_type'))
    required_type = alias.get('device_type')
    if device_type in _ON_DEMAND and required_type != device_type:
        return False
    if required_type and device_type not in (None, required_type):
        return False
    remote = pool.get('remote_managed', tags.get('remote_managed'))
    if str(remote).lower() == 'true':
        return False
    return all(
        key not in alias or alias[key] == pool.get(key)
        for key in ('vendor_id', 'product_id')
    )
