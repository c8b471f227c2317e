"""NUMA cells of instances and of hosts, and whether they fit each other.

A guest cell is a part of an instance that has to lie on one NUMA cell of the
host, with its CPUs, memory and pages. A host's ``numa_topology`` is read once
for each distinct text; what cannot be read has no cells, and passes no
request for any. Each guest cell needs a host cell of its own. That is a
bipartite matching, computed in polynomial time: guest cells of one kind count
together; a few kinds are matched by the condition of Hall, more by augmenting
paths.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service import time_slice
from scheduler_service.columns.dictionary import Floats, Ints, Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters import base
from scheduler_service.model.limits import MAX_RATIO
from scheduler_service.model.requirements.numa import GuestCell, GuestTopology
from scheduler_service.model.requirements.specs import FAULTS

# How many parsed topologies are kept, of about 1 KiB each.
_KEPT = 32_768
# How many topologies are read before other requests get a time slice.
_STEP = 16
# Up to here float64 holds every integer.
_LARGEST = 2**53
# Columns of cells, and of the pages of cells.
(
    CPUS, CPU_USAGE, MEMORY, MEMORY_USED, FREE, CORES, WHOLE_CORES, PAIRED,
    HAS_PAGES,
) = range(9)  # fmt: skip
CELL, SIZE_KB, FREE_KB, TOTAL_KB, SMALL, LARGE = range(6)
_NO_RATIOS = (np.nan, np.nan)
Numbers = npt.NDArray[np.float64]


class CellColumns(NamedTuple):
    """The cells of some topologies, in their order. Nobody writes to them.

    :ivar starts: int64[t + 1], first cell of each topology
    :ivar cells: float64[c, 9]; cores are -1 where none are reported
    :ivar pages: float64[p, 6], each with the row of its cell, ascending
    :ivar ratios: float64[t, 2]: CPU, RAM; NaN: those of the host hold
    """

    starts: Ints
    cells: Numbers
    pages: Numbers
    ratios: Numbers


def cell_columns(table: HostTable) -> CellColumns:
    """Return the cells of the values of the column ``numa_topology``.

    They are joined in two steps, and column by column: thousands of arrays at
    once would take long.

    :raises TimeSliceOver: call it again; topologies that were read are kept
    """
    topology = table.topology
    # Without hosts there is no text, either.
    texts = table.coded['numa_topology'].values or (None,)
    done: list[CellColumns] = topology.memoize('topologies read', list)
    for start in range(len(done) * _STEP, len(texts), _STEP):
        step = texts[start : start + _STEP]
        parts = [*map(columns_of, step)]
        done.append(CellColumns(*(join(parts) for join in _JOINS)))
        time_slice.check()
    columns: list[Any] = topology.memoize('cells', list)
    for join in _JOINS[len(columns) :]:
        columns.append(join(done))
        time_slice.check()
    return CellColumns(*columns)


def _starts(parts: Sequence[CellColumns]) -> Ints:
    counts = np.concatenate([np.diff(part.starts) for part in parts])
    return np.concatenate([[0], np.cumsum(counts)])


def _pages_of_parts(parts: Sequence[CellColumns]) -> Numbers:
    pages = np.concatenate([part.pages for part in parts])
    counts = [len(part.cells) for part in parts]
    before = np.cumsum(counts) - counts
    pages[:, CELL] += np.repeat(before, [len(part.pages) for part in parts])
    return pages


# What joins each of the columns.
_JOINS: tuple[Callable[[Sequence[CellColumns]], Any], ...] = (
    _starts,
    lambda parts: np.concatenate([part.cells for part in parts]),
    _pages_of_parts,
    lambda parts: np.concatenate([part.ratios for part in parts]),
)


def _selected(columns: CellColumns, topologies: Ints) -> CellColumns:
    """Return the cells of some of the topologies, in turn."""
    first, end = columns.starts[topologies], columns.starts[topologies + 1]
    starts = np.concatenate([[0], np.cumsum(end - first)])
    owners = columns.pages[:, CELL]
    first_page, end_page = np.searchsorted(owners, (first, end))
    pages = columns.pages[_ranges(first_page, end_page)]
    pages[:, CELL] += np.repeat(starts[:-1] - first, end_page - first_page)
    cells = columns.cells[_ranges(first, end)]
    return CellColumns(starts, cells, pages, columns.ratios[topologies])


def _ranges(first: Ints, end: Ints) -> Ints:
    """Return the numbers of several ranges, in turn."""
    counts = end - first
    before = np.cumsum(counts) - counts
    ranges: Ints = np.repeat(first - before, counts)
    return ranges + np.arange(len(ranges))


def why_unreadable(text: bytes | None) -> str:
    """Return why a topology cannot be read; empty: it can."""
    return base.why_unreadable(_parse, 'numa_topology', text)


@functools.lru_cache(_KEPT)
def columns_of(text: bytes | None) -> CellColumns:
    """Return the cells of one topology, none if it cannot be read."""
    try:
        return _parse(text)
    except FAULTS:
        return _one_topology([], [], _NO_RATIOS)


def _parse(text: bytes | None) -> CellColumns:
    """Read one topology.

    :raises Exception: one of ``FAULTS``: it has another form
    """
    host = msgspec.json.decode(text) if text else None
    cells = (host or {}).get('cells') or []
    rows = [_cell(cell) for cell in cells]
    pages = [row for at, cell in enumerate(cells) for row in _pages(at, cell)]
    return _one_topology(
        rows, pages, (_ratio(host, 'cpu'), _ratio(host, 'ram'))
    )


def _one_topology(
    cells: list[tuple[float, ...]],
    pages: list[tuple[float, ...]],
    ratios: tuple[float, float],
) -> CellColumns:
    """Return the columns of one topology.

    :raises ValueError: a number is too large, or not one
    """
    return CellColumns(
        np.array([0, len(cells)], np.int64),
        _array(cells, 9),
        _array(pages, 6),
        np.array([ratios], np.float64),
    )


def _ratio(host: dict[str, Any] | None, kind: str) -> float:
    """Return a ratio of the topology itself; NaN: it has none.

    :raises ValueError: it is no ratio
    """
    stated = float((host or {}).get(f'{kind}_allocation_ratio') or 0.0)
    if not 0 <= stated <= MAX_RATIO:
        raise ValueError(f'no {kind} ratio')
    return stated or np.nan


def _array(rows: list[tuple[float, ...]], width: int) -> Numbers:
    """Return rows as an array.

    :raises ValueError: a number is too large, or not one
    """
    array = np.array(rows, np.float64).reshape(len(rows), width)
    if not (np.abs(array) <= _LARGEST).all():
        raise ValueError('a figure is too large')
    return array


def _cell(cell: dict[str, Any]) -> tuple[float, ...]:
    cpus = set(cell.get('cpuset') or ())
    pcpus = cell.get('pcpuset')
    usable = cpus if pcpus is None else set(pcpus)
    free = usable - set(cell.get('pinned_cpus') or ())
    siblings = [set(core) for core in cell.get('siblings') or []]
    threads = max(map(len, siblings), default=0)
    left = [len(core & free) for core in siblings]
    # A CPU takes a whole core, whose other threads stay idle; on hosts with
    # threads only where the same CPUs may be shared and dedicated.
    whole = sum(count >= threads > 0 for count in left)
    if threads > 1 and usable != cpus:
        whole = 0
    # As many threads of each core are used, at least two.
    paired = max(
        (
            each * sum(count >= each for count in left)
            for each in range(2, threads + 1)
        ),
        default=0,
    )
    return (
        len(cpus),
        float(cell.get('cpu_usage') or 0),
        int(cell.get('memory') or 0),
        int(cell.get('memory_usage') or 0),
        len(free),
        sum(count > 0 for count in left) if siblings else -1,
        whole if siblings else -1,
        paired,
        bool(cell.get('mempages')),
    )


def _pages(number: int, cell: dict[str, Any]) -> list[tuple[float, ...]]:
    pages = cell.get('mempages') or []
    sizes = sorted(int(page['size_kb']) for page in pages)
    rows: list[tuple[float, ...]] = []
    for page in pages:
        size, total = int(page['size_kb']), int(page['total'])
        taken = int(page.get('used') or 0) + int(page.get('reserved') or 0)
        if size < 1:
            raise ValueError('a page has no size')
        small, large = size == sizes[0], size in sizes[1:]
        rows.append(
            (number, size, (total - taken) * size, total * size, small, large)
        )
    return rows


def has_pages(
    columns: CellColumns, page_size: str, memory: int, amount: int = FREE_KB
) -> Mask:
    """Return bool[c]: cells with pages of a size that hold the memory.

    :param page_size: small, large, any, or a size in KiB as text
    :param memory: in MB; all of it lies in pages of one size
    :param amount: column of the pages that have to hold it
    """
    pages, needed = columns.pages, float(memory * 1024)
    allowed = _usable_pages(pages, page_size, needed)
    good = allowed & (pages[:, amount] >= needed)
    mask = np.zeros(len(columns.cells), np.bool_)
    mask[pages[good, CELL].astype(np.int64)] = True
    return mask


def _usable_pages(pages: Numbers, page_size: str, needed: float) -> Mask:
    """Return bool[p]: pages of the size, a multiple of which is *needed*.

    :param needed: in KiB
    """
    size: Floats = pages[:, SIZE_KB]
    if page_size == 'small':
        allowed = pages[:, SMALL] > 0
    elif page_size == 'large':
        allowed = pages[:, LARGE] > 0
    elif page_size == 'any':
        allowed = np.ones(len(pages), np.bool_)
    else:
        allowed = size == float(page_size)
    mask: Mask = allowed & (needed % size == 0)
    return mask


# The condition of Hall has a line for each set of kinds.
_FEW_KINDS = 6
# How many pairs of a kind and a host cell are compared, and how many hosts
# are matched by augmenting paths, before other requests get a time slice.
_STEP_PAIRS = 20_000
_STEP_MATCHINGS = 4
UNKNOWN, NO, YES = -1, 0, 1
Results = npt.NDArray[np.int8]


class Hosts(NamedTuple):
    """Distinct hosts, as far as topologies and ratios are concerned.

    :ivar topology: int64[n], which topology each has
    """

    topology: Ints
    cpu_ratio: Floats
    ram_ratio: Floats


class _Kind(NamedTuple):
    """Guest cells that fit the same host cells.

    :ivar emulator_cpus: CPUs that it takes for emulator threads
    """

    cell: GuestCell
    emulator_cpus: int


def evaluate(
    guest: GuestTopology, columns: CellColumns, hosts: Hosts, results: Results
) -> None:
    """Evaluate whether each guest cell gets a host cell of its own.

    :param results: int8[n], gets YES or NO; only UNKNOWN changes
    :raises TimeSliceOver: call it again with the same results
    """
    kinds = Counter(_kinds(guest))
    counts = np.diff(columns.starts)[hosts.topology]
    results[counts < len(guest.cells)] = NO
    undecided = np.flatnonzero(results == UNKNOWN)
    done = 0
    while done < len(undecided):
        step = _STEP_MATCHINGS
        if len(kinds) <= _FEW_KINDS:
            pairs = np.cumsum(counts[undecided[done:]]) * len(kinds)
            step = max(1, int(np.searchsorted(pairs, _STEP_PAIRS)))
        at = undecided[done : done + step]
        part = Hosts(
            hosts.topology[at], hosts.cpu_ratio[at], hosts.ram_ratio[at]
        )
        fit = _fitting(guest, list(kinds), columns, part)
        results[at] = _assignable(fit, counts[at], list(kinds.values()))
        done += step
        time_slice.check()


def fits_on(
    guest: GuestTopology,
    columns: CellColumns,
    host: Hosts,
    sets: Iterable[Sequence[int]],
) -> bool:
    """Return whether the guest cells fit any of some sets of host cells.

    :param host: one host
    :param sets: numbers of cells, as many in each as there are guest cells
    """
    kinds = Counter(_kinds(guest))
    fit = _fitting(guest, list(kinds), columns, host)
    amounts = list(kinds.values())
    return any(_matches(fit[:, list(cells)], amounts) for cells in sets)


def first_cells(
    guest: GuestTopology,
    columns: CellColumns,
    host: Hosts,
    order: Sequence[int],
    is_near: Callable[[Sequence[int]], bool],
) -> list[int] | None:
    """Return the cells of a host that the guest cells get, in their order.

    Of all cells that they fit, the first in *order*.

    :param host: one host
    :param order: numbers of all its cells
    :param is_near: whether the guest may have a set of cells, in any order
    :return: None: the guest cells do not fit
    """
    listed = _kinds(guest)
    kinds = list(dict.fromkeys(listed))
    fit = _fitting(guest, kinds, columns, host)
    fit = fit[[kinds.index(kind) for kind in listed]]
    return _completed([], fit, order, is_near)


# A recursive function within another would be a reference cycle, with all
# that it refers to: these are not.
def _completed(
    chosen: list[int],
    fit: Mask,
    order: Sequence[int],
    is_near: Callable[[Sequence[int]], bool],
) -> list[int] | None:
    """Return the first cells that begin with those chosen; None: none fit.

    :param fit: bool[guest cells, cells]
    """
    left = [cell for cell in order if cell not in chosen]
    later = fit[len(chosen) :]
    if not _matches(later[:, left], [1] * len(later)):
        return None
    if not len(later):
        return chosen if is_near(chosen) else None
    tries = (
        _completed([*chosen, cell], fit, order, is_near)
        for cell in left
        if later[0, cell]
    )
    return next((cells for cells in tries if cells is not None), None)


def _kinds(guest: GuestTopology) -> list[_Kind]:
    return [
        _Kind(cell, guest.emulator_cpus(number))
        for number, cell in enumerate(guest.cells)
    ]


def _fitting(
    guest: GuestTopology,
    kinds: Sequence[_Kind],
    columns: CellColumns,
    hosts: Hosts,
) -> Mask:
    """Return bool[k, c]: which kinds fit which cells of the hosts, in turn."""
    columns = _selected(columns, hosts.topology)
    cells, counts = columns.cells.T, np.diff(columns.starts)
    cpu_ratio = np.repeat(hosts.cpu_ratio, counts)
    ram_ratio = np.repeat(hosts.ram_ratio, counts)
    fit = np.empty((len(kinds), len(columns.cells)), np.bool_)
    for number, kind in enumerate(kinds):
        fit[number] = _has_cpus(guest, kind, cells)
        fit[number] &= _has_memory(guest, kind.cell, columns)
        if guest.shares:
            used = cells[CPU_USAGE] + kind.cell.shared
            fit[number] &= kind.cell.shared <= cells[CPUS]
            fit[number] &= used <= cells[CPUS] * cpu_ratio
            used = cells[MEMORY_USED] + kind.cell.memory
            fit[number] &= used <= cells[MEMORY] * ram_ratio
    return fit


class Demand(NamedTuple):
    """What guest cells need of one kind, and what host cells have of it.

    :ivar unit: names it
    :ivar needed: of each guest cell, the largest first
    :ivar free: float64[c], of each cell of the hosts, in turn
    """

    unit: str
    needed: list[int]
    free: Floats

    def lacking(self, starts: Ints) -> Floats:
        """Return float64[n]: how much the cells of each host lack.

        Guest cells get the host cells with the most, as if nothing else
        counted.

        :param starts: int64[n + 1], first cell of each host
        """
        counts, most = np.diff(starts), len(self.needed)
        owner = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort((-self.free, owner))
        rank = np.arange(len(owner)) - starts[owner]
        used = rank < most
        needed = np.array([*self.needed, 0], np.float64)
        lack = needed[rank[used]] - self.free[order[used]]
        # What the guest cells need for which there is no cell.
        rest = np.cumsum(needed[::-1])[::-1][np.minimum(counts, most)]
        lacks = np.bincount(owner[used], np.maximum(lack, 0), len(counts))
        return rest + lacks


def demands(
    guest: GuestTopology, columns: CellColumns, hosts: Hosts
) -> tuple[list[Demand], Ints]:
    """Return what the guest cells need and the cells of hosts have.

    :return: and int64[n + 1], the first cell of each host
    """
    columns = _selected(columns, hosts.topology)
    cells, counts = columns.cells.T, np.diff(columns.starts)
    cpu_ratio = np.repeat(hosts.cpu_ratio, counts)
    ram_ratio = np.repeat(hosts.ram_ratio, counts)
    # By unit and what is free: the amounts of guest cells.
    every: list[tuple[str, Floats, list[int]]] = []
    amount = FREE_KB if guest.pinned else TOTAL_KB
    total, used = cells[MEMORY], cells[MEMORY_USED]
    memory = np.where(
        cells[HAS_PAGES] > 0,
        _pages_mb(columns, 'small', 0, amount),
        total - used if guest.pinned else total,
    )
    within = total * ram_ratio - used
    listed = guest.cells
    if guest.shares:
        memory = np.minimum(memory, within)
        free = np.minimum(cells[CPUS], cells[CPUS] * cpu_ratio)
        free = np.minimum(free, cells[CPUS] * cpu_ratio - cells[CPU_USAGE])
        every.append(('shared CPUs', free, [each.shared for each in listed]))
    if guest.pinned:
        dedicated = [kind.cell.dedicated + kind.emulator_cpus
                     for kind in _kinds(guest)]  # fmt: skip
        every.append(('dedicated CPUs', cells[FREE], dedicated))
        # Where no cores are reported, each CPU counts as one.
        cores = np.where(cells[CORES] < 0, cells[FREE], cells[WHOLE_CORES])
        for policy, unit, free in (
            ('isolate', 'cores of which no thread is taken', cores),
            ('require', 'CPUs on threads of the same cores', cells[PAIRED]),
        ):
            own = [c.dedicated for c in listed if c.thread_policy == policy]
            every.append((unit, free, own))
    plain = [each.memory for each in listed if not each.page_size]
    every.append(('MB of memory', memory, plain))
    for size in dict.fromkeys(c.page_size for c in listed if c.page_size):
        own = [each.memory for each in listed if each.page_size == size]
        if guest.shares:
            every.append(('MB of memory', within, own))
        free = _pages_mb(columns, size, max(own), FREE_KB)
        unit = f'{size} KiB' if size.isdigit() else size
        every.append((f'MB of pages ({unit})', free, own))
    return [
        Demand(unit, sorted(needed, reverse=True), free)
        for unit, free, needed in every
        if any(needed)
    ], columns.starts


def _pages_mb(
    columns: CellColumns, page_size: str, memory: int, amount: int
) -> Floats:
    """Return float64[c]: memory in pages of one usable size, in MB."""
    pages, most = columns.pages, np.zeros(len(columns.cells))
    usable = pages[_usable_pages(pages, page_size, float(memory * 1024))]
    cells = usable[:, CELL].astype(np.int64)
    np.maximum.at(most, cells, usable[:, amount] / 1024)
    return most


def _has_memory(
    guest: GuestTopology, cell: GuestCell, columns: CellColumns
) -> Mask:
    """Return bool[c]: host cells that have the memory.

    Pages of the size that the guest cell requires count, or the smallest.
    Memory of instances with dedicated CPUs is not overcommitted.
    """
    if cell.page_size:
        return has_pages(columns, cell.page_size, cell.memory)
    cells = columns.cells.T
    total, free = cells[MEMORY], cells[MEMORY] - cells[MEMORY_USED]
    amount = FREE_KB if guest.pinned else TOTAL_KB
    return np.where(
        cells[HAS_PAGES] > 0,
        has_pages(columns, 'small', cell.memory, amount),
        cell.memory <= (free if guest.pinned else total),
    )


def _has_cpus(guest: GuestTopology, kind: _Kind, cells: Floats) -> Mask:
    """Return bool[c]: host cells with the dedicated CPUs, by the policy."""
    needed, extra = kind.cell.dedicated, kind.emulator_cpus
    # Emulator threads go beside dedicated CPUs.
    mask: Mask = (cells[FREE] >= needed + extra) & (needed >= extra)
    if not guest.pinned:
        mask[:] = True
    elif kind.cell.thread_policy == 'isolate':
        whole = (cells[WHOLE_CORES] >= needed) & (
            cells[CORES] >= needed + extra
        )
        mask &= (cells[CORES] < 0) | (whole & (needed > 0))
    elif kind.cell.thread_policy == 'require':
        mask &= cells[PAIRED] >= max(needed, 1)
    return mask


def _assignable(fit: Mask, counts: Ints, amounts: Sequence[int]) -> Mask:
    """Return bool[n]: the hosts on which all guest cells find their cells.

    :param fit: bool[k, c], which kinds fit which cells
    :param counts: int64[n], how many cells each host has, at least 1
    :param amounts: how many guest cells there are of each kind
    """
    starts = np.cumsum(counts) - counts
    numbers = range(len(amounts))
    are_few = len(amounts) <= _FEW_KINDS
    sizes = numbers if are_few else (0, len(amounts) - 1)
    passed = np.ones(len(counts), np.bool_)
    # For all sets of kinds that is the condition of Hall: then, and only
    # then, there is a matching.
    for size in sizes:
        for kinds in itertools.combinations(numbers, size + 1):
            usable = fit[list(kinds)].any(axis=0)
            needed = sum(amounts[number] for number in kinds)
            passed &= np.add.reduceat(usable, starts, dtype=np.int64) >= needed
    for at in () if are_few else np.flatnonzero(passed).tolist():
        cells = fit[:, starts[at] : starts[at] + counts[at]]
        passed[at] = _matches(cells, amounts)
    return passed


def _matches(fit: Mask, amounts: Sequence[int]) -> bool:
    """Return whether a host has a cell for each guest cell.

    Each guest cell in turn takes a cell, and earlier guest cells give way
    along an augmenting path where they can.

    :param fit: bool[k, c], which kinds fit which of its cells
    """
    owners: dict[int, int] = {}
    guests = [
        np.flatnonzero(row).tolist()
        for row, count in zip(fit, amounts, strict=True)
        for _ in range(count)
    ]
    return all(
        _assign(guest, guests, owners, set()) for guest in range(len(guests))
    )


def _assign(
    guest: int,
    usable: Sequence[Sequence[int]],
    owners: dict[int, int],
    visited: set[int],
) -> bool:
    """Give a guest cell a cell that is not visited; return whether it got one.

    :param usable: cells that each guest cell fits
    :param owners: cell -> guest cell
    """
    for cell in usable[guest]:
        if cell in visited:
            continue
        visited.add(cell)
        if cell not in owners or _assign(
            owners[cell], usable, owners, visited
        ):
            owners[cell] = guest
            return True
    return False
