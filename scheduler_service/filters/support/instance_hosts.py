"""Where the instances that a request names are."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.model import Request


def instances_of_hint(request: Request, hint: str) -> list[str]:
    """Return the instances that a hint names, one or a list."""
    value = request.hint(hint)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)]


def hosts_of(table: HostTable, instances: list[str]) -> set[str]:
    """Return the service hosts of the instances that are known."""
    found = (table.instances.get(uuid) for uuid in instances)
    return {one.host for one in found if one is not None}
