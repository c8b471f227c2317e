"""Host filters: one module each, listed in one table."""

from __future__ import annotations

from scheduler_service.filters.base import (
    AdaptedHostFilter,
    HostFilter,
    HostState,
    OneHostFilter,
)
from scheduler_service.filters.hosts.aggregate_core_filter import (
    AggregateCoreFilter,
)
from scheduler_service.filters.hosts.aggregate_disk_filter import (
    AggregateDiskFilter,
)
from scheduler_service.filters.hosts.aggregate_image_properties_isolation import (  # noqa: E501
    AggregateImagePropertiesIsolation,
)
from scheduler_service.filters.hosts.aggregate_instance_extra_specs_filter import (  # noqa: E501
    AggregateInstanceExtraSpecsFilter,
)
from scheduler_service.filters.hosts.aggregate_instance_type_filter import (
    AggregateInstanceTypeFilter,
)
from scheduler_service.filters.hosts.aggregate_io_ops_filter import (
    AggregateIoOpsFilter,
)
from scheduler_service.filters.hosts.aggregate_multi_tenancy_isolation import (
    AggregateMultiTenancyIsolation,
)
from scheduler_service.filters.hosts.aggregate_num_instances_filter import (
    AggregateNumInstancesFilter,
)
from scheduler_service.filters.hosts.aggregate_ram_filter import (
    AggregateRamFilter,
)
from scheduler_service.filters.hosts.aggregate_type_affinity_filter import (
    AggregateTypeAffinityFilter,
)
from scheduler_service.filters.hosts.all_hosts_filter import (
    AllHostsFilter,
)
from scheduler_service.filters.hosts.availability_zone_filter import (
    AvailabilityZoneFilter,
)
from scheduler_service.filters.hosts.compute_capabilities_filter import (
    ComputeCapabilitiesFilter,
)
from scheduler_service.filters.hosts.compute_filter import (
    ComputeFilter,
)
from scheduler_service.filters.hosts.core_filter import (
    CoreFilter,
)
from scheduler_service.filters.hosts.different_host_filter import (
    DifferentHostFilter,
)
from scheduler_service.filters.hosts.disk_filter import (
    DiskFilter,
)
from scheduler_service.filters.hosts.exact_core_filter import (
    ExactCoreFilter,
)
from scheduler_service.filters.hosts.exact_disk_filter import (
    ExactDiskFilter,
)
from scheduler_service.filters.hosts.exact_ram_filter import (
    ExactRamFilter,
)
from scheduler_service.filters.hosts.group_affinity_filter import (
    GroupAffinityFilter,
)
from scheduler_service.filters.hosts.group_anti_affinity_filter import (
    GroupAntiAffinityFilter,
)
from scheduler_service.filters.hosts.image_properties_filter import (
    ImagePropertiesFilter,
)
from scheduler_service.filters.hosts.io_ops_filter import (
    IoOpsFilter,
)
from scheduler_service.filters.hosts.isolated_hosts_filter import (
    IsolatedHostsFilter,
)
from scheduler_service.filters.hosts.json_filter import (
    JsonFilter,
)
from scheduler_service.filters.hosts.metrics_filter import (
    MetricsFilter,
)
from scheduler_service.filters.hosts.num_instances_filter import (
    NumInstancesFilter,
)
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.filters.hosts.pci_passthrough_filter import (
    PciPassthroughFilter,
)
from scheduler_service.filters.hosts.ram_filter import (
    RamFilter,
)
from scheduler_service.filters.hosts.retry_filter import (
    RetryFilter,
)
from scheduler_service.filters.hosts.same_host_filter import (
    SameHostFilter,
)
from scheduler_service.filters.hosts.server_group_affinity_filter import (
    ServerGroupAffinityFilter,
)
from scheduler_service.filters.hosts.server_group_anti_affinity_filter import (
    ServerGroupAntiAffinityFilter,
)
from scheduler_service.filters.hosts.simple_cidr_affinity_filter import (
    SimpleCIDRAffinityFilter,
)
from scheduler_service.filters.hosts.type_affinity_filter import (
    TypeAffinityFilter,
)

BUILT_IN: tuple[type[HostFilter], ...] = (
    AggregateCoreFilter,
    AggregateDiskFilter,
    AggregateImagePropertiesIsolation,
    AggregateInstanceExtraSpecsFilter,
    AggregateInstanceTypeFilter,
    AggregateIoOpsFilter,
    AggregateMultiTenancyIsolation,
    AggregateNumInstancesFilter,
    AggregateRamFilter,
    AggregateTypeAffinityFilter,
    AllHostsFilter,
    AvailabilityZoneFilter,
    ComputeCapabilitiesFilter,
    ComputeFilter,
    CoreFilter,
    DifferentHostFilter,
    DiskFilter,
    ExactCoreFilter,
    ExactDiskFilter,
    ExactRamFilter,
    GroupAffinityFilter,
    GroupAntiAffinityFilter,
    ImagePropertiesFilter,
    IoOpsFilter,
    IsolatedHostsFilter,
    JsonFilter,
    MetricsFilter,
    NUMATopologyFilter,
    NumInstancesFilter,
    PciPassthroughFilter,
    RamFilter,
    RetryFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
    SimpleCIDRAffinityFilter,
    TypeAffinityFilter,
)


def all_filters() -> list[type[HostFilter]]:
    """Return every host filter that comes with the service."""
    return list(BUILT_IN)


__all__ = [
    'BUILT_IN',
    'AdaptedHostFilter',
    'HostFilter',
    'HostState',
    'OneHostFilter',
    'all_filters',
]
