"""Which policies of server groups a configuration enforces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.hosts.affinity_filter import (
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
from scheduler_service.model import Request
from scheduler_service.pipeline.weighing import Weighing
from scheduler_service.weighers.affinity_weigher import (
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from scheduler_service.weighers.base import ServerGroupWeigher

_STRICT = {
    each.policy: each.name
    for each in (ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter)
}
_SOFT = {
    each.policy: each
    for each in (
        ServerGroupSoftAffinityWeigher,
        ServerGroupSoftAntiAffinityWeigher,
    )
}


class GroupPolicies:
    """The policies that the configured filters and weighers enforce.

    :ivar strict: policies that a filter enforces, and each claim
    """

    def __init__(
        self, filters: Sequence[HostFilter], weighing: Weighing
    ) -> None:
        self.strict = frozenset(each.policy for each in filters if each.policy)
        self._weighing = weighing

    def check(self, table: HostTable, request: Request) -> None:
        """Check that the policies of a request's server groups hold.

        :raises ServerGroupNotEnforced: one does not
        """
        stored = request.stored_groups.values()
        uuids = {uuid for groups in stored for uuid in groups}
        for uuid in sorted(uuids | {request.instance_group or ''}):
            group = table.groups.get(uuid)
            lack = group and self._lack(table, group.policy)
            if group and lack:
                raise errors.ServerGroupNotEnforced(
                    f'Nothing enforces the policy {group.policy} of server '
                    f'group {uuid}: {" ".join(lack)}',
                    server_group=uuid,
                    policy=group.policy,
                    missing=lack[0],
                )

    def unenforced(self, table: HostTable) -> list[str]:
        """Return each policy of stored groups that is not, and why not."""
        counts = Counter(group.policy for group in table.groups.values())
        return [
            f'{policy} (groups: {count}): {" ".join(lack)}'
            for policy, count in sorted(counts.items())
            if (lack := self._lack(table, policy))
        ]

    def _lack(self, table: HostTable, policy: str) -> tuple[str, str] | None:
        """Return the filter or weigher that a policy lacks, and why."""
        if policy in _STRICT:
            if policy in self.strict:
                return None
            return _STRICT[policy], 'is not enabled (enabled_filters)'
        soft = _SOFT[policy]
        weighers = [
            each
            for each in self._weighing.weighers
            if isinstance(each, ServerGroupWeigher) and each.policy == policy
        ]
        if not weighers:
            return soft.name, 'is not enabled (weight_classes)'
        if any(self._weighing.counts(table, each) for each in weighers):
            return None
        return soft.name, f'does not count ({soft.multiplier_option} is 0)'
