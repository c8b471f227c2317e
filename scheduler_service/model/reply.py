"""Reply documents: selected hosts and pools, with the reasons."""

from __future__ import annotations

from typing import Any

import msgspec


class Selection(msgspec.Struct, kw_only=True):
    """A host for an instance.

    :ivar limits: the most that the capacity filters allow on the host in
        total, by ``vcpu``, ``memory_mb`` and ``disk_gb``; absent where no
        filter checked it
    :ivar numa_limits: ``cpu_allocation_ratio`` and ``ram_allocation_ratio``
        of the host's NUMA cells, where the request asks for such cells
    :ivar allocation: of the placement service, where it is more than amounts
        of the host's own provider: ``allocations`` and ``mappings``
    """

    host: str
    node: str
    uuid: str
    zone: str | None = None
    cell: str | None = None
    limits: dict[str, int] = {}
    numa_limits: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    allocation: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Placement(msgspec.Struct, kw_only=True):
    """The host of an instance, and alternates for it."""

    instance_uuid: str
    selected: Selection
    alternates: list[Selection] = []


class HostsAnswer(msgspec.Struct, kw_only=True):
    """The reply to select_destinations, in the order of the instances."""

    request_id: str
    placements: list[Placement]
    explanation: dict[str, Any] | None = None


class PoolAnswer(msgspec.Struct, kw_only=True):
    """The reply to schedule_zone."""

    request_id: str
    zone_id: str
    pool_id: str
    pool_name: str | None = None
    explanation: dict[str, Any] | None = None


def plain(reply: Any) -> Any:
    """Return a reply as plain dicts and lists."""
    return msgspec.to_builtins(reply)
