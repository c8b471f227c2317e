"""Filters on groups: the ``group`` hint, and server groups."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.hosts.instance_hints import hosts_of
from scheduler_service.model import Request, ServerGroup
from scheduler_service.settings import Settings


def group_of(table: HostTable, request: Request) -> ServerGroup | None:
    """Return the server group of the request, None where it has none."""
    if request.instance_group is None:
        return None
    return table.groups.get(request.instance_group)


def members_by_host(table: HostTable, group: ServerGroup) -> Counter[str]:
    """Return how many members of a group each service host has."""
    found = (table.instances.get(uuid) for uuid in group.members)
    return Counter(
        host for one in found if one is not None for host in one.hosts
    )


def _hinted_hosts(table: HostTable, request: Request) -> set[str]:
    """Return hosts of the members of the group that the hint names.

    By uuid, or by name: of several with one name, all.
    """
    named = request.hint('group')
    if not isinstance(named, str):
        return set()
    groups = [
        group
        for group in table.groups.values()
        if named in (group.uuid, group.name)
    ]
    members = [uuid for group in groups for uuid in group.members]
    return hosts_of(table, members)


class GroupAffinityFilter(HostFilter):
    """Passes hosts that have a member of the group of the hint ``group``.

    A group without members on any host passes everywhere.
    """

    depends = 'request'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up where the members are."""
        hosts = _hinted_hosts(table, request)
        return table.mask_of(table.rows_of_hosts(hosts)) if hosts else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that none is here."""
        return f'no member of the group {request.hint("group")} is here'


class GroupAntiAffinityFilter(HostFilter):
    """Leaves out hosts with a member of the group of the hint ``group``."""

    depends = 'request'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up where the members are."""
        hosts = _hinted_hosts(table, request)
        return ~table.mask_of(table.rows_of_hosts(hosts)) if hosts else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that one is here."""
        return f'a member of the group {request.hint("group")} is here'


class ServerGroupAffinityFilter(HostFilter):
    """Passes hosts with members of an ``affinity`` group, once it has any."""

    depends = 'request'

    policy = 'affinity'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up where the members are."""
        group = group_of(table, request)
        if group is None or group.policy != self.policy:
            return None
        hosts = set(members_by_host(table, group))
        return table.mask_of(table.rows_of_hosts(hosts)) if hosts else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say where the group is."""
        group = group_of(table, request)
        hosts = sorted(members_by_host(table, group)) if group else []
        return f'the server group is on {", ".join(hosts[:5])}'


class ServerGroupAntiAffinityFilter(HostFilter):
    """Leaves out hosts with enough members of an ``anti-affinity`` group.

    Enough is ``max_server_per_host``, 1 if not said. A host that has the
    very instance which is to be placed passes.
    """

    depends = 'request'

    policy = 'anti-affinity'

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look up where the members are."""
        group = group_of(table, request)
        if group is None or group.policy != self.policy:
            return None
        most = group.max_server_per_host
        counts = members_by_host(table, group)
        own = hosts_of(table, request.instance_uuids[:1])
        full = [
            host
            for host, count in counts.items()
            if count >= most and host not in own
        ]
        passed = np.ones(len(table), np.bool_)
        passed[table.rows_of_hosts(full)] = False
        return passed

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both figures."""
        group = group_of(table, request)
        if group is None:
            return 'does not pass'
        count = members_by_host(table, group)[table.host_at(row)]
        return (
            f'{count} members of the server group are here, at most '
            f'{group.max_server_per_host} may be'
        )
