"""The host filter NUMATopologyFilter."""

from __future__ import annotations

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Mask, combinations
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters import host_attributes, numa
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

_RATIOS = ('cpu_allocation_ratio', 'ram_allocation_ratio')


class NUMATopologyFilter(HostFilter):
    """Passes hosts whose NUMA cells can hold the cells of the instance.

    The cells follow from the extra specs ``hw:numa_*``,
    ``hw:mem_page_size``, ``hw:cpu_policy``, ``hw:cpu_thread_policy`` and
    ``hw:emulator_threads_policy``, or from the image's properties of the same
    meaning; a request without any passes everywhere. Each cell of the
    instance gets a host cell of its own that has the memory, the pages and
    the CPUs: shared CPUs and memory within the host's allocation ratios,
    dedicated ones from what is free. Where a host reports pages and none are
    requested, the memory has to fit into those of the smallest size. A host's
    ``numa_topology`` is ``{cells: [{cpuset, pcpuset, pinned_cpus, siblings,
    cpu_usage, memory, memory_usage, mempages: [{size_kb, total, used,
    reserved}]}],
    cpu_allocation_ratio, ram_allocation_ratio}``; a host fails whose topology
    has another form. Ratios there go before those of the host.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct topology with its ratios once.

        :raises TimeSliceOver: other requests have their turn first
        """
        guest = numa.guest_topology(request)
        if guest is None:
            return None
        _check_devices(request)
        cells = numa.cell_columns(table)
        columns = [
            table.coded['numa_topology'],
            *(
                host_attributes.ratios(table, name, settings)
                for name in _RATIOS
            ),
        ]
        (topologies, *ratios), combination = combinations(columns)
        own = cells.ratios[topologies]
        cpu_ratio, ram_ratio = (
            np.where(
                np.isnan(own[:, at]),
                np.array(column.values, np.float64)[codes],
                own[:, at],
            )
            for at, (column, codes) in enumerate(
                zip(columns[1:], ratios, strict=True)
            )
        )
        hosts = numa.Hosts(topologies, cpu_ratio, ram_ratio)
        # Kept until the next turn, if this one is too short.
        results = table.topology.keep(
            ('results', self.name, guest),
            lambda: np.full(len(topologies), numa.UNKNOWN, np.int8),
        )
        numa.evaluate(guest, cells, hosts, results)
        mask: Mask = (results == numa.YES).take(combination)
        return mask

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the cells of the instance, None for none."""
        return numa.guest_topology(request)

    def numa_limits(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> dict[str, float]:
        """Return the ratios within which the cells were found to fit."""
        if numa.guest_topology(request) is None:
            return {}
        code = table.coded['numa_topology'].codes[row]
        stated = numa.cell_columns(table).ratios[code].tolist()
        return {
            name: host_attributes.ratios(table, name, settings).at(row)
            if own != own
            else own
            for name, own in zip(_RATIOS, stated, strict=True)
        }

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the cells of the instance, and how many the host has."""
        topologies = table.coded['numa_topology']
        if not topologies.at(row):
            return 'the host reports no NUMA topology'
        code = topologies.codes[row]
        why = numa.why_unreadable(topologies.values[code])
        if why:
            return why
        starts = numa.cell_columns(table).starts
        guest = numa.guest_topology(request)
        guest_cells = [
            (cell.shared + cell.dedicated, cell.memory)
            for cell in (guest.cells if guest else ())
        ]
        return (
            f'cells of (CPUs, MB) {guest_cells} do not fit the NUMA cells of '
            f'the host ({starts[code + 1] - starts[code]})'
        )


def _check_devices(request: Request) -> None:
    """Check that devices need not be on the cells of the instance.

    :raises InvalidRequest: they have to be
    """
    for number, device in enumerate(request.pci_requests):
        if device.numa_policy in ('required', 'socket'):
            place = f'pci_requests[{number}].numa_policy'
            raise errors.InvalidRequest(
                f'{place}: the policy {device.numa_policy} for NUMA affinity '
                'is not supported by this scheduler',
                at=place,
                unsupported=place,
            )
