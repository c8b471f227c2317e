"""Whether the cells of an instance fit on those of hosts, for many hosts.

Each guest cell needs a host cell of its own. That is a matching in a graph,
which is found in polynomial time: guest cells of one kind count together, a
few kinds by the condition of Hall, more by augmenting paths.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler_service import turns
from scheduler_service.columns.dictionary import Floats, Ints, Mask
from scheduler_service.filters.support import numa_cells
from scheduler_service.filters.support.numa import GuestCell, GuestTopology
from scheduler_service.filters.support.numa_cells import CellColumns

# The condition of Hall has a line for each set of kinds.
_FEW_KINDS = 6
# How many pairs of a kind and a host cell are compared, and how many hosts
# are matched by augmenting paths, before others may have their turn.
_STEP_PAIRS = 50_000
_STEP_MATCHINGS = 4
UNKNOWN, NO, YES = -1, 0, 1
Verdicts = npt.NDArray[np.int8]


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


def judge(
    guest: GuestTopology, found: CellColumns, hosts: Hosts, verdicts: Verdicts
) -> None:
    """Say for each host whether every guest cell has a host cell of its own.

    :param verdicts: int8[n], gets YES or NO; others than UNKNOWN stay
    :raises TurnOver: others have their turn first; go on with the verdicts
    """
    kinds = _kinds(guest)
    counts = np.diff(found.starts)[hosts.topology]
    possible = counts >= len(guest.cells)
    if guest.thread_policy == 'require':
        possible &= found.threads[hosts.topology]
    verdicts[~possible] = NO
    left = np.flatnonzero(verdicts == UNKNOWN)
    done = 0
    while done < len(left):
        step = _step(counts[left[done:]], len(kinds))
        some = left[done : done + step]
        taken = Hosts(
            hosts.topology[some], hosts.cpu_ratio[some], hosts.ram_ratio[some]
        )
        fit = _fitting(guest, list(kinds), found, taken, counts[some])
        verdicts[some] = _assignable(fit, counts[some], list(kinds.values()))
        done += step
        turns.check()


def _step(counts: Ints, kinds: int) -> int:
    """Return how many hosts are judged at once, at least one."""
    if kinds > _FEW_KINDS:
        return _STEP_MATCHINGS
    pairs = np.cumsum(counts) * kinds
    return max(1, int(np.searchsorted(pairs, _STEP_PAIRS)))


def _kinds(guest: GuestTopology) -> Counter[_Kind]:
    """Return the kinds of guest cells, and how many there are of each."""
    emulator = guest.pinned and guest.isolated_emulator
    return Counter(
        _Kind(cell, int(emulator and not number))
        for number, cell in enumerate(guest.cells)
    )


def _fitting(
    guest: GuestTopology,
    kinds: Sequence[_Kind],
    found: CellColumns,
    hosts: Hosts,
    counts: Ints,
) -> Mask:
    """Return bool[k, c]: which kinds fit which cells of the hosts, in turn.

    :param counts: int64[n], how many cells each host has
    """
    first = found.starts[hosts.topology] - np.cumsum(counts) + counts
    at = np.repeat(first, counts) + np.arange(counts.sum())
    cells = found.cells[at].T
    cpu_ratio = np.repeat(hosts.cpu_ratio, counts)
    ram_ratio = np.repeat(hosts.ram_ratio, counts)
    fit = np.empty((len(kinds), len(at)), np.bool_)
    for number, kind in enumerate(kinds):
        memory = kind.cell.memory
        fit[number] = _has_cpus(guest, kind, cells, cpu_ratio)
        fit[number] &= _has_memory(guest, memory, cells, ram_ratio)
        if guest.page_size:
            pages = numa_cells.has_pages(found, guest.page_size, memory)
            fit[number] &= pages[at]
    return fit


def _has_memory(
    guest: GuestTopology, memory: int, cells: Floats, ratio: Floats
) -> Mask:
    """Return where the memory is there; pinned guests do not overcommit."""
    total, used = cells[numa_cells.MEMORY], cells[numa_cells.MEMORY_USED]
    found: Mask
    if guest.pinned:
        found = memory <= total - used
    else:
        found = (memory <= total) & (used + memory <= total * ratio)
    return found


def _has_cpus(
    guest: GuestTopology, kind: _Kind, cells: Floats, ratio: Floats
) -> Mask:
    """Return where the CPUs are there, placed as the policy requires."""
    wanted = kind.cell.cpus
    found: Mask
    if not guest.pinned:
        cpus, used = cells[numa_cells.CPUS], cells[numa_cells.CPU_USAGE]
        found = (wanted <= cpus) & (used + wanted <= cpus * ratio)
        return found
    found = cells[numa_cells.FREE] >= wanted + kind.emulator_cpus
    if guest.thread_policy == 'isolate':
        whole = cells[numa_cells.WHOLE_CORES]
        found &= (whole < 0) | (whole >= wanted)
    elif guest.thread_policy == 'require':
        found &= cells[numa_cells.PAIRED] >= wanted
    return found


def _assignable(fit: Mask, counts: Ints, wanted: Sequence[int]) -> Mask:
    """Return bool[n]: the hosts on which all guest cells find their cells.

    :param fit: bool[k, c], which kinds fit which cells
    :param counts: int64[n], how many cells each host has, at least 1
    :param wanted: how many guest cells there are of each kind
    """
    starts = np.cumsum(counts) - counts
    if len(wanted) <= _FEW_KINDS:
        sets = [
            some
            for size in range(1, len(wanted) + 1)
            for some in itertools.combinations(range(len(wanted)), size)
        ]
        return _have_enough(fit, starts, wanted, sets)
    sets = [(number,) for number in range(len(wanted))]
    passed = _have_enough(fit, starts, wanted, [*sets, tuple(range(len(fit)))])
    for at in np.flatnonzero(passed).tolist():
        cells = fit[:, starts[at] : starts[at] + counts[at]]
        passed[at] = _matches(cells, wanted)
    return passed


def _have_enough(
    fit: Mask,
    starts: Ints,
    wanted: Sequence[int],
    sets: Sequence[Sequence[int]],
) -> Mask:
    """Return bool[n]: hosts with as many cells for each set as it needs.

    For all sets of kinds that is the condition of Hall: then, and only then,
    there is a matching.
    """
    passed = np.ones(len(starts), np.bool_)
    for some in sets:
        usable = fit[list(some)].any(axis=0)
        needed = sum(wanted[number] for number in some)
        passed &= np.add.reduceat(usable, starts, dtype=np.int64) >= needed
    return passed


def _matches(fit: Mask, wanted: Sequence[int]) -> bool:
    """Say whether one host has a cell for each guest cell.

    Each guest cell in turn takes a cell, and those before it give way along
    an augmenting path where they can.

    :param fit: bool[k, c], which kinds fit which of its cells
    """
    owners: dict[int, int] = {}
    guests = [
        np.flatnonzero(row).tolist()
        for row, count in zip(fit, wanted, strict=True)
        for _ in range(count)
    ]

    def finds(guest: int, seen: set[int]) -> bool:
        for cell in guests[guest]:
            if cell in seen:
                continue
            seen.add(cell)
            if cell not in owners or finds(owners[cell], seen):
                owners[cell] = guest
                return True
        return False

    return all(finds(guest, set()) for guest in range(len(guests)))
