"""PCI devices of hosts, and whether they suffice for requests.

Hosts report free devices in pools: devices of one kind, on one NUMA cell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler_service.model.requirements.devices import (
    DeviceRequest,
    Properties,
)

# Device types that only a request for that very type is given.
_ON_DEMAND = frozenset(('type-PF', 'vdpa'))


class GuestPlace(NamedTuple):
    """Where an instance with a NUMA topology would be on a host.

    :ivar cells: ids of the host's cells that it would be on
    :ivar socket_cells: ids of all cells of their sockets; empty: the host
        does not report sockets
    """

    cells: Collection[int]
    socket_cells: Collection[int]


def has_devices(
    pools: Sequence[Mapping[str, Any]],
    devices: Sequence[DeviceRequest],
    place: GuestPlace | None = None,
) -> bool:
    """Return whether a host's pools have all requested devices at once.

    :param place: of the instance; None: devices may be anywhere
    """
    return without_devices(pools, devices, place) is not None


def without_devices(
    pools: Sequence[Mapping[str, Any]],
    devices: Sequence[DeviceRequest],
    place: GuestPlace | None = None,
) -> list[dict[str, Any]] | None:
    """Return a host's pools without the requested devices.

    Pools with few tags are taken first: others may be needed for their tags.

    :param place: of the instance; None: devices may be anywhere
    :return: None: the pools do not have them all at once
    """
    pools = sorted(pools, key=lambda pool: len(pool.get('tags') or ()))
    free = [_count(pool) for pool in pools]
    for device in devices:
        usable: Sequence[int] = [
            index
            for index, pool in enumerate(pools)
            if free[index]
            and any(_matches(pool, each) for each in device.alternatives)
        ]
        if place is not None:
            nodes = [pool.get('numa_node') for pool in pools]
            usable = _near(device, usable, nodes, free, place)
        # Last: as in compute services, they count as near devices before.
        usable = [at for at in usable if _may_have(pools[at], device)]
        needed = device.needed
        for index in usable:
            taken = min(needed, free[index])
            free[index] -= taken
            needed -= taken
        if needed:
            return None
    return [
        {**pool, 'count': count}
        for pool, count in zip(pools, free, strict=True)
    ]


def _near(
    device: DeviceRequest,
    usable: Sequence[int],
    nodes: Sequence[Any],
    free: Sequence[int],
    place: GuestPlace,
) -> Sequence[int]:
    """Return the pools that are near enough, in the order of their use.

    :param usable: indexes of pools whose devices match
    :param nodes: NUMA cell of each pool, None where it is not reported
    :param free: how many devices each pool has
    """

    def enough(among: Sequence[int]) -> bool:
        return sum(free[index] for index in among) >= device.needed

    own = [index for index in usable if nodes[index] in place.cells]
    if device.policy == 'required' or enough(own):
        return own
    if device.policy == 'socket':
        return [
            index for index in usable if nodes[index] in place.socket_cells
        ]
    allowed = {*place.cells, None}
    preferred = [index for index in usable if nodes[index] in allowed]
    if device.policy == 'legacy' or enough(preferred):
        return preferred
    return sorted(usable, key=lambda index: nodes[index] not in allowed)


def free_devices(pools: Sequence[Mapping[str, Any]]) -> int:
    """Return how many devices of any kind a host's pools have."""
    return sum(_count(pool) for pool in pools)


def _count(pool: Mapping[str, Any]) -> int:
    return int(pool.get('count') or 0)


def _matches(pool: Mapping[str, Any], properties: Properties) -> bool:
    """Return whether the devices of a pool have all properties.

    The tags of a pool are properties, too. A pool without a device type may
    have devices of any type.
    """
    required = dict(properties)
    required_type = required.pop('dev_type', None)
    if required_type and _stated(pool, 'dev_type') not in (
        None, required_type
    ):  # fmt: skip
        return False
    if _is_true(required.pop('remote_managed', None)) and not _is_true(
        _stated(pool, 'remote_managed')
    ):
        return False
    return all(
        _folded(_stated(pool, key)) == _folded(value)
        for key, value in required.items()
    )


def _may_have(pool: Mapping[str, Any], device: DeviceRequest) -> bool:
    """Return whether a request names what only such requests are given."""
    asked = [dict(properties) for properties in device.alternatives]
    kind = _stated(pool, 'dev_type')
    if kind in _ON_DEMAND and all(
        one.get('dev_type') != kind for one in asked
    ):
        return False
    return not _is_true(_stated(pool, 'remote_managed')) or any(
        _is_true(one.get('remote_managed')) for one in asked
    )


def _stated(pool: Mapping[str, Any], key: str) -> Any:
    """Return a property of a pool, or the tag of that name."""
    return pool.get(key, (pool.get('tags') or {}).get(key))


def _folded(value: Any) -> Any:
    """Return a value as it is compared: text without regard to its case."""
    return value.lower() if isinstance(value, str) else value


def _is_true(value: Any) -> bool:
    return str(value).lower() == 'true'
