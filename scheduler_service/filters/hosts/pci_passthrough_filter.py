"""PciPassthroughFilter."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

SPEC = 'pci_passthrough:alias'
# Devices that nobody gets without asking for their kind.
_ON_DEMAND = frozenset(('type-PF', 'vdpa'))
Wanted = tuple[tuple[str, int], ...]


class PciPassthroughFilter(HostFilter):
    """Passes hosts with the PCI devices asked for, all at once.

    Asked by the extra spec ``pci_passthrough:alias`` (``name:count``, several
    with commas); ``[pci] alias`` says what a name stands for. Physical
    functions and vDPA devices are given only to those who name their type;
    remote-managed devices to nobody.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct list of pools once."""
        wanted = _wanted(request)
        if not wanted:
            return None
        aliases = _aliases(settings)
        unknown = [name for name, _ in wanted if name not in aliases]
        if unknown:
            raise ValueError(f'no [pci] alias is named {", ".join(unknown)}')
        return decoded(table, 'pci_device_pools').mask_where(
            lambda pools: _fits(pools or [], wanted, aliases)
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the devices, and what their names stand for."""
        wanted = _wanted(request)
        return (wanted, settings.pci_aliases) if wanted else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say what is asked and how many devices are free."""
        pools = decoded(table, 'pci_device_pools').at(row) or []
        free = sum(int(pool.get('count') or 0) for pool in pools)
        asked = ', '.join(f'{name}:{n}' for name, n in _wanted(request))
        return f'PCI devices {asked} asked, {free} of any kind free'


def _wanted(request: Request) -> Wanted:
    """Return (alias, count) pairs.

    :raises ValueError: a count is no number
    """
    text = request.flavor.extra_specs.get(SPEC)
    if not text:
        return ()
    found = []
    for part in text.split(','):
        name, _, count = part.strip().partition(':')
        found.append((name, int(count or 1)))
    return tuple(found)


def _aliases(settings: Settings) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for text in settings.pci_aliases:
        alias = msgspec.json.decode(text)
        found[alias['name']] = alias
    return found


def _fits(
    pools: list[dict[str, Any]],
    wanted: Wanted,
    aliases: dict[str, dict[str, Any]],
) -> bool:
    left = [int(pool.get('count') or 0) for pool in pools]
    for name, count in wanted:
        for at, pool in enumerate(pools):
            if count and _matches(pool, aliases[name]):
                taken = min(count, left[at])
                left[at] -= taken
                count -= taken
        if count:
            return False
    return True


def _matches(pool: dict[str, Any], alias: dict[str, Any]) -> bool:
    tags = pool.get('tags') or {}
    kind = pool.get('dev_type', tags.get('dev_type'))
    asked = alias.get('device_type')
    if kind in _ON_DEMAND and asked != kind:
        return False
    if asked and kind is not None and asked != kind:
        return False
    remote = pool.get('remote_managed', tags.get('remote_managed'))
    if str(remote).lower() == 'true':
        return False
    return all(
        key not in alias or alias[key] == pool.get(key)
        for key in ('vendor_id', 'product_id')
    )
