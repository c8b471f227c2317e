"""Server groups and hints: the instances they name, and where these are."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.filters.unreadable import refusal
from scheduler_service.model import Request, ServerGroup
from scheduler_service.settings import Settings


def group_of(table: HostTable, request: Request) -> ServerGroup | None:
    """Return the server group of the request, None where it has none."""
    if request.instance_group is None:
        return None
    return table.groups.get(request.instance_group)


def members_by_host(
    table: HostTable, group: ServerGroup, request: Request
) -> Counter[str]:
    """Return how many members of a group each service host has.

    An instance that moves counts on both of its hosts. A host that the request
    names for the group, and that has no stored member, counts 1.
    """
    members = (table.instances.get(uuid) for uuid in group.members)
    counts = Counter(
        host
        for member in members
        if member is not None
        for host in member.hosts
    )
    for host in request.group_hosts:
        counts.setdefault(host, 1)
    return counts


def hosts_of_hinted_group(table: HostTable, request: Request) -> set[str]:
    """Return the hosts of the members of the group that the hint names.

    The hint ``group`` holds the uuid or the name of a server group; where
    several groups have the name, the members of all of them count.
    """
    hint = request.hint('group')
    if not isinstance(hint, str):
        return set()
    groups = [
        group
        for group in table.groups.values()
        if hint in (group.uuid, group.name)
    ]
    members = [uuid for group in groups for uuid in group.members]
    return hosts_of(table, members)


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
    """Return the service hosts of the instances that are stored."""
    instances = (table.instances.get(uuid) for uuid in uuids)
    return {instance.host for instance in instances if instance is not None}


class HintedHostsFilter(RowFilter, abc.ABC):
    """Base of filters by the hosts of instances that a hint names.

    :cvar passes: whether these hosts alone pass; false: all others pass
    :cvar why: the reason of hosts that fail; ``{group}`` stands for the hint
    """

    passes: ClassVar[bool] = True
    why: ClassVar[str] = ''

    @abc.abstractmethod
    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        """Return the service hosts; None: every host passes."""

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look up the rows of the hosts."""
        hosts = self.hosts(table, request)
        if hosts is None:
            return None
        return RowSet(table.rows_of_hosts(hosts), self.passes)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say whether an instance is on the host."""
        return self.why.format(group=request.hint('group'))
