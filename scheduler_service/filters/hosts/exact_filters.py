"""ExactCoreFilter, ExactRamFilter and ExactDiskFilter."""

from __future__ import annotations

import abc
from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter, figure
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ExactFilter(HostFilter, abc.ABC):
    """Passes hosts that have exactly what is asked for left."""

    unit = ''

    @abc.abstractmethod
    def asked(self, request: Request) -> int:
        """Return the amount asked."""

    @abc.abstractmethod
    def free(self, table: HostTable) -> Any:
        """Return what is free of each host, [n]."""

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Compare for equality."""
        passed: Mask = self.free(table) == self.asked(request)
        return passed

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both figures."""
        free = figure(self.free(table)[row])
        return f'exactly {self.asked(request)} {self.unit} asked, {free} free'


class ExactCoreFilter(ExactFilter):
    """Passes hosts with exactly the flavor's vCPUs free.

    A host that reports no vCPUs at all fails.
    """

    unit = 'vCPUs'

    def asked(self, request: Request) -> int:
        """Return the flavor's vCPUs."""
        return request.flavor.vcpus

    def free(self, table: HostTable) -> Any:
        """Return vCPUs less those used."""
        columns = table.resources['VCPU']
        return columns.total - columns.used

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Compare, where there are figures."""
        passed = super().mask(table, request, settings)
        assert passed is not None
        return passed & (table.resources['VCPU'].total > 0)


class ExactRamFilter(ExactFilter):
    """Passes hosts with exactly the flavor's memory free."""

    unit = 'MB'

    def asked(self, request: Request) -> int:
        """Return the flavor's memory."""
        return request.flavor.memory_mb

    def free(self, table: HostTable) -> Any:
        """Return memory less what is used, MB."""
        columns = table.resources['MEMORY_MB']
        return columns.total - columns.used


class ExactDiskFilter(ExactFilter):
    """Passes hosts with exactly root, ephemeral and swap free, in MB."""

    unit = 'MB of disk'

    def asked(self, request: Request) -> int:
        """Return root, ephemeral and swap in MB."""
        return request.disk_mb

    def free(self, table: HostTable) -> Any:
        """Return free disk in MB."""
        return table.free_disk_mb()
