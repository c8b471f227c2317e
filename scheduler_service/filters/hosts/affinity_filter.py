"""Host filters on server groups, and on instances that hints name."""

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


def group_of(
    table: HostTable, request: Request, policy: str
) -> ServerGroup | None:
    """Return the server group of the request, if it has this policy."""
    group = table.groups.get(request.instance_group or '')
    return group if group and group.policy == policy else None


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


def hosts_of(table: HostTable, uuids: Iterable[str]) -> set[str]:
    """Return the service hosts of the instances that are stored."""
    instances = (table.instances.get(uuid) for uuid in uuids)
    return {instance.host for instance in instances if instance is not None}


class HintedHostsFilter(RowFilter, abc.ABC):
    """Base of filters by the hosts of instances that a hint names.

    :cvar passes: whether these hosts alone pass; false: all others pass
    :cvar why: ``{group}`` in it stands for the hint of that name
    """

    passes: ClassVar[bool] = True

    @abc.abstractmethod
    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        """Return the service hosts; None: every host passes."""

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        hosts = self.hosts(table, request)
        if hosts is None:
            return None
        return RowSet(table.rows_of_hosts(hosts), self.passes)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        return self.why.format(group=request.hint('group'))


class DifferentHostFilter(HintedHostsFilter):
    """Rejects hosts that have any instance named by ``different_host``.

    The hint holds the uuid of one instance or a list of them. Instances that
    are not stored do not matter.
    """

    once = True
    passes = False
    why = 'an instance named by the hint different_host is on this host'
    hint: ClassVar[str] = 'different_host'

    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        """Return the hosts of the instances that are stored.

        :raises InvalidRequest: the hint is neither a uuid nor a list
        """
        value = request.hint(self.hint)
        if value is None:
            return None
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            raise refusal(
                f'scheduler_hints.{self.hint}',
                'the uuid of an instance, or a list of them',
                value,
            )
        uuids = [uuid for uuid in value if isinstance(uuid, str)]
        return hosts_of(table, uuids) if uuids else None


class SameHostFilter(DifferentHostFilter):
    """Passes hosts that have any instance named by ``same_host``.

    The hint holds the uuid of one instance or a list of them. Where none of
    them is stored, every host fails.
    """

    passes = True
    why = 'no instance named by the hint same_host is on this host'
    hint = 'same_host'


class GroupAffinityFilter(HintedHostsFilter):
    """Passes hosts that have a member of the group named by ``group``.

    The hint holds the uuid or the name of a server group, whose policy does
    not matter. Where several groups have the name, the members of all of them
    count. Every host passes where no member is on any host.
    """

    why = 'no member of the group {group} is on this host'

    def hosts(self, table: HostTable, request: Request) -> set[str] | None:
        hint = request.hint('group')
        if not isinstance(hint, str):
            return None
        members = [
            uuid
            for group in table.groups.values()
            if hint in (group.uuid, group.name)
            for uuid in group.members
        ]
        return hosts_of(table, members) or None


class GroupAntiAffinityFilter(GroupAffinityFilter):
    """Rejects hosts that have a member of the group named by ``group``.

    The hint is that of GroupAffinityFilter.
    """

    passes = False
    why = 'a member of the group {group} is on this host'


class ServerGroupAffinityFilter(RowFilter):
    """Keeps the members of an ``affinity`` server group on their hosts.

    Passes hosts that have a member. Every host passes as long as no member
    is on any host, and where the group has another policy.
    """

    policy = 'affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        group = group_of(table, request, self.policy)
        if group is None:
            return None
        hosts = set(members_by_host(table, group, request))
        if not hosts:
            return None
        return RowSet(table.rows_of_hosts(hosts), passes=True)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        group = group_of(table, request, self.policy)
        hosts = sorted(members_by_host(table, group, request)) if group else []
        return (
            f'the members of the server group are on {", ".join(hosts[:5])}, '
            'not on this host'
        )


class ServerGroupAntiAffinityFilter(RowFilter):
    """Keeps the members of an ``anti-affinity`` server group apart.

    Rejects hosts that have ``max_server_per_host`` members or more, 1 where
    the rule is not set. A host that already has the instance to be placed
    passes. Every host passes where the group has another policy.
    """

    policy = 'anti-affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        group = group_of(table, request, self.policy)
        if group is None:
            return None
        placing = request.placing
        own_hosts = hosts_of(table, [placing]) if placing else set()
        counts = members_by_host(table, group, request)
        full_hosts = [
            host
            for host, count in counts.items()
            if count >= group.max_server_per_host and host not in own_hosts
        ]
        return RowSet(table.rows_of_hosts(full_hosts), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        group = group_of(table, request, self.policy)
        if group is None:
            return self.why
        counts = members_by_host(table, group, request)
        count = counts[table.host_at(row)]
        return (
            f'members of the server group on this host: {count}, at most '
            f'{group.max_server_per_host} allowed'
        )
