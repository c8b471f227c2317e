"""NUMATopologyFilter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.support import numa
from scheduler_service.filters.support.host_attributes import as_coded, column
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class NUMATopologyFilter(HostFilter):
    """Passes hosts whose NUMA cells can hold the cells asked for.

    Asked by ``hw:numa_*``, ``hw:mem_page_size``, ``hw:cpu_policy``,
    ``hw:cpu_thread_policy`` and ``hw:emulator_threads_policy``, or the
    image's properties. Each guest cell gets a host cell of its own with the
    memory, pages and CPUs: shared ones under the host's ratios, dedicated
    ones from what is free. A host's ``numa_topology`` is ``{cells: [{cpuset,
    pcpuset, pinned_cpus, siblings, cpu_usage, memory, memory_usage,
    mempages: [{size_kb, total, used}]}]}``.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct topology with its ratios once."""
        guest = numa.guest_of(request)
        threads = numa.thread_policy(request) == 'require'
        if guest is None:
            return None

        def verdict(host: Any, cpu: float, ram: float) -> bool:
            if not host:
                return False
            if threads and not numa.has_threads(host):
                return False
            return numa.fits(guest, host, cpu, ram)

        return _by_topology(table, settings, verdict)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the cells asked for."""
        guest = numa.guest_of(request)
        return None if guest is None else (guest, numa.thread_policy(request))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say what is asked, and how many cells there are."""
        guest = numa.guest_of(request)
        host = decoded(table, 'numa_topology').at(row)
        cells = len(host.get('cells') or ()) if host else 0
        asked = [tuple(cell) for cell in guest.cells] if guest else []
        return (
            f'cells of (CPUs, MB) {asked} asked, they do not fit the '
            f"host's {cells} cells"
        )


def _by_topology(
    table: HostTable,
    settings: Settings,
    verdict: Callable[[Any, float, float], bool],
) -> Mask:
    hosts = decoded(table, 'numa_topology')
    cpu = as_coded(column(table, 'cpu_allocation_ratio', settings))
    ram = as_coded(column(table, 'ram_allocation_ratio', settings))
    codes = np.stack([hosts.codes, cpu.codes, ram.codes])
    distinct, which = np.unique(codes, axis=1, return_inverse=True)
    verdicts = np.fromiter(
        (
            verdict(hosts.values[h], cpu.values[c], ram.values[r])
            for h, c, r in distinct.T
        ),
        np.bool_,
        distinct.shape[1],
    )
    spread: Mask = verdicts.take(which.ravel())
    return spread
