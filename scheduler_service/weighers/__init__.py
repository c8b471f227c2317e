"""Weighers: listed in one table."""

from __future__ import annotations

from scheduler_service.weighers.base import Weigher
from scheduler_service.weighers.counts import (
    BuildFailureWeigher,
    HypervisorVersionWeigher,
    IoOpsWeigher,
    NumInstancesWeigher,
)
from scheduler_service.weighers.cpu import CPUWeigher
from scheduler_service.weighers.cross_cell import CrossCellWeigher
from scheduler_service.weighers.disk import DiskWeigher
from scheduler_service.weighers.groups import (
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from scheduler_service.weighers.image_properties import (
    ImagePropertiesWeigher,
)
from scheduler_service.weighers.metrics import MetricsWeigher
from scheduler_service.weighers.pci import PCIWeigher
from scheduler_service.weighers.ram import RAMWeigher

BUILT_IN: tuple[type[Weigher], ...] = (
    BuildFailureWeigher,
    CPUWeigher,
    CrossCellWeigher,
    DiskWeigher,
    HypervisorVersionWeigher,
    ImagePropertiesWeigher,
    IoOpsWeigher,
    MetricsWeigher,
    NumInstancesWeigher,
    PCIWeigher,
    RAMWeigher,
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)


def all_weighers() -> list[type[Weigher]]:
    """Return every weigher that comes with the service."""
    return list(BUILT_IN)


__all__ = ['BUILT_IN', 'Weigher', 'all_weighers']
