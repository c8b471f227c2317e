"""The weigher ServerGroupSoftAffinityWeigher."""

from __future__ import annotations

from scheduler_service.weighers.base import ServerGroupWeigher


class ServerGroupSoftAffinityWeigher(ServerGroupWeigher):
    """Prefers hosts with more members of a ``soft-affinity`` server group."""

    multiplier_option = 'soft_affinity_weight_multiplier'
    policy = 'soft-affinity'
