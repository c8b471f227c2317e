"""Weighers on the members of a server group."""

from __future__ import annotations

from scheduler_service.weighers.base import ServerGroupWeigher


class ServerGroupSoftAffinityWeigher(ServerGroupWeigher):
    """Prefers hosts with more members of a ``soft-affinity`` server group."""

    multiplier_option = 'soft_affinity_weight_multiplier'
    policy = 'soft-affinity'


class ServerGroupSoftAntiAffinityWeigher(ServerGroupWeigher):
    """Prefers hosts with fewer members of the server group.

    The group's policy has to be ``soft-anti-affinity``.
    """

    multiplier_option = 'soft_anti_affinity_weight_multiplier'
    policy = 'soft-anti-affinity'
    weight_per_member = -1.0
