"""The host filter NUMATopologyFilter."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support import host_attributes, numa
from scheduler_service.filters.support.distinct import mask_of_combinations
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class NUMATopologyFilter(HostFilter):
    """Passes hosts whose NUMA cells can hold the cells of the instance.

    The cells follow from the extra specs ``hw:numa_*``,
    ``hw:mem_page_size``, ``hw:cpu_policy``, ``hw:cpu_thread_policy`` and
    ``hw:emulator_threads_policy``, or from the image's properties of the same
    meaning; a request without any passes everywhere. Each cell of the
    instance gets a host cell of its own that has the memory, the pages and
    the CPUs: shared CPUs and memory within the host's allocation ratios,
    dedicated ones from what is free. A host's ``numa_topology`` is ``{cells:
    [{cpuset, pcpuset, pinned_cpus, siblings, cpu_usage, memory,
    memory_usage, mempages: [{size_kb, total, used}]}]}``.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct topology with its ratios once."""
        guest = numa.guest_topology(request)
        if guest is None:
            return None
        needs_threads = numa.thread_policy(request) == 'require'

        def passes(host: Any, cpu_ratio: float, ram_ratio: float) -> bool:
            if not host:
                return False
            if needs_threads and not numa.has_threads(host):
                return False
            return numa.fits(guest, host, cpu_ratio, ram_ratio)

        columns = [
            decoded(table, 'numa_topology'),
            host_attributes.ratios(table, 'cpu_allocation_ratio', settings),
            host_attributes.ratios(table, 'ram_allocation_ratio', settings),
        ]
        return mask_of_combinations(columns, passes)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the cells of the instance, None for none."""
        guest = numa.guest_topology(request)
        return None if guest is None else (guest, numa.thread_policy(request))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the cells of the instance, and how many the host has."""
        host = decoded(table, 'numa_topology').at(row)
        if not host:
            return 'the host reports no NUMA topology'
        guest = numa.guest_topology(request)
        guest_cells = [tuple(cell) for cell in guest.cells] if guest else []
        return (
            f'cells of (CPUs, MB) {guest_cells} do not fit the NUMA cells of '
            f'the host ({len(host.get("cells") or ())})'
        )
