"""ServerGroupSoftAntiAffinityWeigher."""

from __future__ import annotations

from scheduler_service.weighers.support.server_group_weigher import (
    ServerGroupWeigher,
)


class ServerGroupSoftAntiAffinityWeigher(ServerGroupWeigher):
    """Prefers hosts with fewer members of a ``soft-anti-affinity`` group."""

    multiplier_option = 'soft_anti_affinity_weight_multiplier'
    policy = 'soft-anti-affinity'
    each = -1.0
