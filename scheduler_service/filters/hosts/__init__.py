"""Host filters: one module each, listed in one table."""

from __future__ import annotations

from scheduler_service.filters.hosts.all_hosts_filter import AllHostsFilter
from scheduler_service.filters.hosts.availability_zone_filter import (
    AvailabilityZoneFilter,
)
from scheduler_service.filters.hosts.base import (
    AdaptedHostFilter,
    HostFilter,
    HostState,
    OneHostFilter,
)
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.filters.hosts.core_filter import CoreFilter
from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.filters.hosts.ram_filter import RamFilter
from scheduler_service.filters.hosts.retry_filter import RetryFilter

BUILT_IN: tuple[type[HostFilter], ...] = (
    AllHostsFilter,
    AvailabilityZoneFilter,
    ComputeFilter,
    CoreFilter,
    DiskFilter,
    RamFilter,
    RetryFilter,
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
