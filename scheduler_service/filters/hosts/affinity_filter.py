"""Host filters on server groups, and on instances that hints name."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowFilter, RowSet
from scheduler_service.model import Request, ServerGroup
from scheduler_service.model.requirements.specs import refusal
from scheduler_service.settings import Settings


def members_by_host(
    table: HostTable, group: ServerGroup, request: Request
) -> Counter[str]:
    """Return how many members of a group each service host has.

    An instance that moves counts on both of its hosts. A host that the request
    names for its group, and that has no stored member, counts 1.
    """
    members = (table.instances.get(uuid) for uuid in group.members)
    counts = Counter(
        host
        for member in members
        if member is not None
        for host in member.hosts
    )
    for host in request.hosts_named_for(group.uuid):
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

    Passes hosts that have a member that does not move: of one that moves it
    is not known where it will be. Every host passes as long as no member is
    on any host, and where the group has another policy. The groups of an
    instance that is stored count as well as the one that the request names.
    An instance that moves is not bound by itself, unless the request is one of
    a compute service.
    """

    policy = 'affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        of_groups = self._hosts(table, request)
        if not of_groups:
            return None
        hosts = set.intersection(*of_groups)
        return RowSet(table.rows_of_hosts(hosts), passes=True)

    def _hosts(self, table: HostTable, request: Request) -> list[set[str]]:
        """Return the hosts of each group's members, of groups with some."""
        groups = table.groups_for(request, self.policy)
        hosts = (_binding_hosts(table, group, request) for group in groups)
        return [some for some in hosts if some is not None]

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        here = table.host_at(row)
        for some in self._hosts(table, request):
            if not some:
                return 'the members of the server group move'
            if here not in some:
                listed = ', '.join(sorted(some)[:5])
                return (
                    f'the members of the server group are on {listed}, '
                    'not on this host'
                )
        return self.why


def _binding_hosts(
    table: HostTable, group: ServerGroup, request: Request
) -> set[str] | None:
    """Return the service hosts that the members of a group bind a request to.

    :return: empty: all of them move; None: there is none
    """
    members = table.instances.among(group.members)
    named = {*request.hosts_named_for(group.uuid)}
    if not request.lenient:
        own = members.pop(request.placing or '', None)
        named.difference_update(own.hosts if own is not None else ())
    if not members and not named:
        return None
    return named.union(
        one.host for one in members.values() if len(one.hosts) == 1
    )


class ServerGroupAntiAffinityFilter(RowFilter):
    """Keeps the members of an ``anti-affinity`` server group apart.

    Rejects hosts that have ``max_server_per_host`` members or more, 1 where
    the rule is not set. A host that already has the instance to be placed
    passes. Every host passes where the group has another policy. The groups of
    an instance that is stored count as well as the one that the request names.
    """

    policy = 'anti-affinity'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        groups = table.groups_for(request, self.policy)
        if not groups:
            return None
        placing = request.placing
        own_hosts = hosts_of(table, [placing]) if placing else set()
        full_hosts = {
            host
            for group in groups
            for host, count in members_by_host(table, group, request).items()
            if count >= group.max_server_per_host and host not in own_hosts
        }
        return RowSet(table.rows_of_hosts(full_hosts), passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        here = table.host_at(row)
        for group in table.groups_for(request, self.policy):
            count = members_by_host(table, group, request)[here]
            if count >= group.max_server_per_host:
                return (
                    f'members of the server group on this host: {count}, at '
                    f'most {group.max_server_per_host} allowed'
                )
        return self.why
