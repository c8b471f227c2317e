"""The host filter NUMATopologyFilter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service import time_slice
from scheduler_service.columns.dictionary import (
    Floats,
    Ints,
    Mask,
    combinations,
)
from scheduler_service.columns.table import HostTable, decoded
from scheduler_service.columns.topology import Key
from scheduler_service.filters import host_attributes, numa
from scheduler_service.filters.base import HostFilter, where_readable
from scheduler_service.filters.numa_placement import fits_near
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.texts import figure

# The result of a host whose devices and networks are near enough, too.
_NEAR = 2
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
    requested, the memory has to fit into those of the smallest size. Devices
    have to be as near to these cells as their policy says, and a network with
    an affinity to some cells needs one of these. A host's ``numa_topology`` is
    ``{cells: [{cpuset, pcpuset, pinned_cpus, siblings,
    cpu_usage, memory, memory_usage, mempages: [{size_kb, total, used,
    reserved}], id, socket, network_metadata: {physnets, tunneled}}],
    cpu_allocation_ratio, ram_allocation_ratio}``; a host fails whose topology
    has another form. Ratios there go before those of the host.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct topology with its ratios once.

        :raises TimeSliceOver: other requests have their turn first
        """
        guest = request.guest
        if guest is None:
            return None
        devices = request.devices(settings)
        cells = numa.cell_columns(table)
        listed = decoded(table, 'pci_device_pools')
        hosts, pools, combination = _distinct(
            table, settings, [listed] if devices else []
        )
        topologies, cpu_ratio, ram_ratio = hosts
        # Kept for the next time slice if this slice is too short.
        results = table.topology.keep(
            ('results', self.name, guest, devices),
            lambda: np.full(len(topologies), numa.UNKNOWN, np.int8),
        )
        numa.evaluate(guest, cells, hosts, results)
        good = numa.YES
        if devices or guest.physnets or guest.tunneled:
            good = _NEAR
            documents = decoded(table, 'numa_topology').values
            for at in np.flatnonzero(results == numa.YES).tolist():
                is_near = where_readable(fits_near)(
                    guest,
                    devices,
                    documents[topologies[at]]['cells'],
                    listed.values[pools[0][at]] or [] if pools else [],
                    cells,
                    numa.Hosts(
                        topologies[[at]], cpu_ratio[[at]], ram_ratio[[at]]
                    ),
                )
                results[at] = _NEAR if is_near else numa.NO
                time_slice.check()
        mask: Mask = (results == good).take(combination)
        return mask

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        guest = request.guest
        devices = request.devices(settings)
        return (guest, devices) if guest and devices else guest

    def has_devices(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> bool:
        guest = request.guest
        if guest is None:
            return True
        limits = self.numa_limits(table, row, request, settings)
        code = table.coded['numa_topology'].codes[row]
        ratios = (np.array([limits[name]], np.float64) for name in _RATIOS)
        return where_readable(fits_near)(
            guest,
            request.devices(settings),
            decoded(table, 'numa_topology').at(row)['cells'],
            decoded(table, 'pci_device_pools').at(row) or [],
            numa.cell_columns(table),
            numa.Hosts(np.array([code], np.int64), *ratios),
        )

    def numa_limits(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> dict[str, float]:
        if request.guest is None:
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
        topologies = table.coded['numa_topology']
        if not topologies.at(row):
            return 'the host reports no NUMA topology'
        why = numa.why_unreadable(topologies.at(row))
        guest = request.guest
        if why or guest is None:
            return why
        limits = self.numa_limits(table, row, request, settings)
        hosts = numa.Hosts(
            topologies.codes[[row]].astype(np.int64),
            *(np.array([limits[name]], np.float64) for name in _RATIOS),
        )
        columns = numa.cell_columns(table)
        demands, starts = numa.demands(guest, columns, hosts)
        if starts[1] < len(guest.cells):
            return (
                f'{len(guest.cells)} NUMA cells requested, the host has '
                f'{starts[1]}'
            )
        short = [each for each in demands if each.lacking(starts).any()]
        whole = numa.fits_on(guest, columns, hosts, [range(starts[1])])
        text = '; '.join(map(_sentence, short or demands))
        if whole:
            devices = request.devices(settings)
            names = ', '.join(f'{one.name}:{one.needed}' for one in devices)
            return f'no NUMA cells that fit are near {names or "the networks"}'
        return text if short else f'no NUMA cell has all of {text}'

    def miss(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[np.ndarray[Any, Any], str] | None:
        """Return what the cells of hosts lack of what most hosts lack."""
        guest = request.guest
        if guest is None:
            return None

        def work() -> _Missed | None:
            hosts, _, combination = _distinct(table, settings)
            columns = numa.cell_columns(table)
            demands, starts = numa.demands(guest, columns, hosts)
            lacks = [each.lacking(starts) for each in demands]
            if not lacks:
                return None
            most = int(np.argmax([np.count_nonzero(lack) for lack in lacks]))
            unit = f'{demands[most].unit} in its NUMA cells'
            return _Missed(lacks[most].take(combination), unit)

        return table.topology.keep(('miss', self.name, guest), work)


class _Missed(NamedTuple):
    """What hosts lack, float64[n], and of what."""

    lacking: Floats
    unit: str

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return self.lacking.nbytes


def _sentence(demand: numa.Demand) -> str:
    needed = ' + '.join(map(str, demand.needed))
    free = ' + '.join(map(figure, -np.sort(-demand.free)))
    return f'{needed} {demand.unit} requested of NUMA cells, free: {free}'


def _distinct(
    table: HostTable, settings: Settings, more: Sequence[Any] = ()
) -> tuple[numa.Hosts, list[Ints], Ints]:
    """Return distinct topologies with their ratios.

    :param more: further columns that tell hosts apart
    :return: the topologies, their codes in these columns, and int64[n]: which
        of them each host has
    """
    columns = [
        host_attributes.ratios(table, name, settings) for name in _RATIOS
    ]
    (topologies, *codes), combination = combinations(
        [table.coded['numa_topology'], *columns, *more]
    )
    own = numa.cell_columns(table).ratios[topologies]
    ratios = (
        np.where(
            np.isnan(own[:, at]),
            np.array(column.values, np.float64)[codes[at]],
            own[:, at],
        )
        for at, column in enumerate(columns)
    )
    return numa.Hosts(topologies, *ratios), codes[2:], combination
