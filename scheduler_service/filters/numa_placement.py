"""NUMA cells that instances of a request get on a host, and what is left.

The reports of a host do not have the instances of a request in progress.
What these take is computed by the rules of the compute service: a cell of an
instance goes to the host cell with the most free devices if it has devices, or
with the fewest if it has none; among equals to that with the most free CPUs,
then to that with the most free memory.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service.filters import numa
from scheduler_service.filters.devices import (
    GuestPlace,
    has_devices,
    without_devices,
)
from scheduler_service.model.requirements.devices import DeviceRequest
from scheduler_service.model.requirements.numa import GuestCell, GuestTopology
from scheduler_service.model.requirements.specs import FAULTS

# How many results are kept, of a few KiB each.
_KEPT = 4096


class HostReports(NamedTuple):
    """The reports of a host's cells and devices, as JSON.

    :ivar cpu_ratio: for shared CPUs, where the topology does not state any
    :ivar ram_ratio: for memory, likewise
    """

    topology: bytes | None
    pools: bytes | None
    cpu_ratio: float
    ram_ratio: float


class Needs(NamedTuple):
    """The cells and devices that an instance requires.

    :ivar guest: None: its cells do not count
    """

    guest: GuestTopology | None
    devices: tuple[DeviceRequest, ...]


@functools.lru_cache(64)
def interned(needs: Needs) -> Needs:
    """Return one object for equal needs: thousands of results refer to it."""
    return needs


@functools.lru_cache(_KEPT)
def with_instance(host: HostReports, needs: Needs) -> HostReports | None:
    """Return the reports of a host with an additional instance.

    :return: None: the instance does not fit, or the reports are unreadable
    """
    try:
        return _with_instance(host, needs)
    except FAULTS:
        return None


def _with_instance(host: HostReports, needs: Needs) -> HostReports | None:
    guest, devices = needs
    pools = msgspec.json.decode(host.pools) if host.pools else []
    place = None
    if guest is not None:
        topology = msgspec.json.decode(host.topology or b'{}')
        chosen = _chosen_cells(host, needs, topology['cells'], pools)
        if chosen is None:
            return None
        place = _place(topology['cells'], chosen)
        for number, at in enumerate(chosen):
            emulator_cpus = guest.emulator_cpus(number)
            _put(topology['cells'][at], guest.cells[number], emulator_cpus)
        host = host._replace(topology=msgspec.json.encode(topology))
    if devices:
        pools = without_devices(pools, devices, place)
        if pools is None:
            return None
        host = host._replace(pools=msgspec.json.encode(pools))
    return host


def _chosen_cells(
    host: HostReports,
    needs: Needs,
    cells: Sequence[dict[str, Any]],
    pools: Sequence[dict[str, Any]],
) -> list[int] | None:
    """Return the host cell of each guest cell; None: they do not fit."""
    guest, devices = needs
    assert guest is not None
    columns = numa.columns_of(host.topology)
    own = columns.ratios[0]
    stated = np.where(np.isnan(own), (host.cpu_ratio, host.ram_ratio), own)
    numbers = range(len(cells))
    order: Iterable[int] = numbers
    if len(cells) > len(guest.cells):
        free: Counter[int | None] = Counter()
        for pool in pools:
            free[pool.get('numa_node')] += int(pool.get('count') or 0)

        def preference(number: int) -> tuple[int, ...]:
            cell = cells[number]
            count = free[cell.get('id', number)]
            usage = int(cell.get('memory_usage') or 0)
            return (
                -count if devices else count,
                -len(_free_cpus(cell))
                if guest.pinned
                else int(cell.get('cpu_usage') or 0),
                usage - int(cell.get('memory') or 0),
            )

        order = sorted(numbers, key=preference)
    alone = numa.Hosts(np.array([0], np.int64), stated[:1], stated[1:])
    # Where no set is near enough, it takes long to try all orders of cells.
    if (devices or guest.physnets or guest.tunneled) and not fits_near(
        guest, devices, cells, pools, columns, alone
    ):
        return None
    near: dict[frozenset[int], bool] = {}

    def is_near(chosen: Sequence[int]) -> bool:
        key = frozenset(chosen)
        if key not in near:
            near[key] = _is_near(guest, devices, cells, pools, chosen)
        return near[key]

    return numa.first_cells(guest, columns, alone, [*order], is_near)


def _free_cpus(cell: dict[str, Any]) -> set[int]:
    """Return the CPUs of a host cell that are not dedicated yet."""
    pcpus = cell.get('pcpuset')
    usable = set((cell.get('cpuset') or ()) if pcpus is None else pcpus)
    return usable.difference(cell.get('pinned_cpus') or ())


def _put(cell: dict[str, Any], guest: GuestCell, emulator_cpus: int) -> None:
    """Count a guest cell, which fits, as a part of a host cell."""
    cell['memory_usage'] = int(cell.get('memory_usage') or 0) + guest.memory
    cell['cpu_usage'] = int(cell.get('cpu_usage') or 0) + guest.shared
    if guest.dedicated:
        taken = _pinned(cell, guest, emulator_cpus)
        cell['pinned_cpus'] = [*(cell.get('pinned_cpus') or ()), *taken]
    page = _page(cell.get('mempages') or (), guest)
    if page is not None:
        count = guest.memory * 1024 // int(page['size_kb'])
        page['used'] = int(page.get('used') or 0) + count


def _pinned(
    cell: dict[str, Any], guest: GuestCell, emulator_cpus: int
) -> list[int]:
    """Return the CPUs of a host cell that other instances cannot get.

    As many threads of a core as possible are taken, and as few cores. Where
    the policy is ``isolate``, whole cores are taken.
    """
    free, needed = _free_cpus(cell), guest.dedicated
    siblings = [set(core) for core in cell.get('siblings') or ()]
    siblings = siblings or [{cpu} for cpu in sorted(free)]
    cores = [sorted(core & free) for core in siblings]
    width = max(map(len, siblings))
    if guest.thread_policy == 'isolate':
        whole = [core for core in cores if len(core) == width]
        others = [core for core in cores if core not in whole[:needed]]
        starts = [core[0] for core in whole[:needed]]
        rest = [cpu for core in others for cpu in core]
        taken = {*starts, *rest[:emulator_cpus]}
        return [cpu for core in cores if taken & {*core} for cpu in core]
    chosen: list[int] = []
    for threads in range(width, 0, -1):
        usable = [core for core in cores if len(core) >= threads]
        if len(usable) * threads >= needed:
            chosen = [cpu for core in usable for cpu in core[:threads]]
            break
    every = [cpu for core in cores for cpu in core]
    chosen = (chosen or every)[:needed]
    rest = [cpu for cpu in every if cpu not in chosen]
    return chosen + rest[:emulator_cpus]


def _page(
    pages: Sequence[dict[str, Any]], guest: GuestCell
) -> dict[str, Any] | None:
    """Return the pages that the memory lies in; None: no pages.

    These are the largest that are allowed and fit, or the smallest where no
    size is required.
    """
    by_size = sorted(pages, key=lambda page: int(page['size_kb']))
    if not guest.page_size:
        return by_size[0] if by_size else None
    of_words = {'small': by_size[:1], 'large': by_size[1:], 'any': by_size}
    allowed = of_words.get(guest.page_size) or [
        page for page in by_size if str(page['size_kb']) == guest.page_size
    ]
    needed = guest.memory * 1024
    for page in allowed[::-1]:
        size = int(page['size_kb'])
        taken = int(page.get('used') or 0) + int(page.get('reserved') or 0)
        if not needed % size and (int(page['total']) - taken) * size >= needed:
            return page
    return None


def fits_near(
    guest: GuestTopology,
    devices: Sequence[DeviceRequest],
    cells: Sequence[Any],
    pools: Sequence[Any],
    columns: numa.CellColumns,
    host: numa.Hosts,
) -> bool:
    """Return whether an instance fits cells near its devices and networks.

    :param cells: of the host's topology, as it reports them
    :param pools: of its free devices
    :param host: one host
    """
    sets = itertools.combinations(range(len(cells)), len(guest.cells))
    near = (
        chosen
        for chosen in sets
        if _is_near(guest, devices, cells, pools, chosen)
    )
    return numa.fits_on(guest, columns, host, near)


def _is_near(
    guest: GuestTopology,
    devices: Sequence[DeviceRequest],
    cells: Sequence[Any],
    pools: Sequence[Any],
    chosen: Sequence[int],
) -> bool:
    """Return whether devices and networks are near enough to host cells."""
    return _reaches_networks(guest, cells, chosen) and has_devices(
        pools, devices, _place(cells, chosen)
    )


def _place(cells: Sequence[Any], chosen: Sequence[int]) -> GuestPlace:
    """Return the ids of chosen cells, and of all cells of their sockets."""
    ids = [cell.get('id', number) for number, cell in enumerate(cells)]
    sockets = [cell.get('socket') for cell in cells]
    own = {sockets[number] for number in chosen}
    return GuestPlace(
        {ids[number] for number in chosen},
        ()
        if None in sockets
        else {
            cell
            for cell, socket in zip(ids, sockets, strict=True)
            if socket in own
        },
    )


def _reaches_networks(
    guest: GuestTopology, cells: Sequence[Any], chosen: Sequence[int]
) -> bool:
    """Return whether no network needs another cell than the chosen.

    A network without an affinity to any cell is reached from all.
    """
    near = [
        (
            frozenset(
                (cell.get('network_metadata') or {}).get('physnets') or ()
            ),
            bool((cell.get('network_metadata') or {}).get('tunneled')),
        )
        for cell in cells
    ]
    left = guest.physnets.difference(*(near[number][0] for number in chosen))
    if any(left & physnets for physnets, _ in near):
        return False
    return (
        not guest.tunneled
        or any(near[number][1] for number in chosen)
        or not any(tunneled for _, tunneled in near)
    )
