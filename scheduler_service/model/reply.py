"""What is answered: selections, pools and the reasons for them."""

from __future__ import annotations

from typing import Any

import msgspec


class Selection(msgspec.Struct, kw_only=True):
    """One host for one instance.

    ``limits`` holds what the capacity filters allow the host to use in all:
    vcpu, memory_mb, disk_gb; whole numbers, absent where nothing was checked.
    """

    host: str
    node: str
    uuid: str
    zone: str | None = None
    cell: str | None = None
    limits: dict[str, int] = {}


class Placement(msgspec.Struct, kw_only=True):
    """Where one instance goes, and where else it could go."""

    instance_uuid: str
    selected: Selection
    alternates: list[Selection] = []


class HostsAnswer(msgspec.Struct, kw_only=True):
    """The answer to select_destinations, in the order of the instances."""

    request_id: str
    placements: list[Placement]
    explanation: dict[str, Any] | None = None


class PoolAnswer(msgspec.Struct, kw_only=True):
    """The answer to schedule_zone."""

    request_id: str
    zone_id: str
    pool_id: str
    pool_name: str | None = None
    explanation: dict[str, Any] | None = None


def plain(answer: Any) -> Any:
    """Return an answer as plain dicts and lists, for the bus and for JSON."""
    return msgspec.to_builtins(answer)
