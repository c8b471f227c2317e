"""Where the instances that a request names are."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support.requested import refusal
from scheduler_service.model import Request


def instances_of_hint(request: Request, hint: str) -> list[str]:
    """Return the uuids under a hint, which may be one uuid or a list.

    :raises InvalidRequest: it is neither
    """
    value = request.hint(hint)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refusal(
            f'scheduler_hints.{hint}',
            'the uuid of an instance, or a list of them',
            value,
        )
    return [uuid for uuid in value if isinstance(uuid, str)]


def hosts_of(table: HostTable, uuids: Iterable[str]) -> set[str]:
    """Return the service hosts of those instances that are known."""
    instances = (table.instances.get(uuid) for uuid in uuids)
    return {instance.host for instance in instances if instance is not None}
