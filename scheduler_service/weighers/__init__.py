"""Weighers of hosts: one module each, listed in one table."""

from __future__ import annotations

from scheduler_service.weighers.base import Weigher
from scheduler_service.weighers.build_failure_weigher import (
    BuildFailureWeigher,
)
from scheduler_service.weighers.cpu_weigher import (
    CPUWeigher,
)
from scheduler_service.weighers.cross_cell_weigher import (
    CrossCellWeigher,
)
from scheduler_service.weighers.disk_weigher import (
    DiskWeigher,
)
from scheduler_service.weighers.hypervisor_version_weigher import (
    HypervisorVersionWeigher,
)
from scheduler_service.weighers.image_properties_weigher import (
    ImagePropertiesWeigher,
)
from scheduler_service.weighers.io_ops_weigher import (
    IoOpsWeigher,
)
from scheduler_service.weighers.metrics_weigher import (
    MetricsWeigher,
)
from scheduler_service.weighers.num_instances_weigher import (
    NumInstancesWeigher,
)
from scheduler_service.weighers.pci_weigher import (
    PCIWeigher,
)
from scheduler_service.weighers.ram_weigher import (
    RAMWeigher,
)
from scheduler_service.weighers.server_group_soft_affinity_weigher import (
    ServerGroupSoftAffinityWeigher,
)
from scheduler_service.weighers.server_group_soft_anti_affinity_weigher import (  # noqa: E501
    ServerGroupSoftAntiAffinityWeigher,
)

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
