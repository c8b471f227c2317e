"""The NUMA cells of all hosts as columns, one row for each cell.

A host's ``numa_topology`` is read once for each distinct text. What cannot be
read has no cells: the host passes no request for any.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service import turns
from scheduler_service.columns.dictionary import Floats, Ints, Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support import unreadable
from scheduler_service.model.limits import MAX_RATIO

# Topologies that stay read when hosts change, of about 1 KiB each.
_KEPT = 32_768
# So many topologies are read before others may have their turn.
_STEP = 16
# The largest number of which float64 holds each one.
_LARGEST = 2**53
# Columns of cells, and of the pages of cells.
CPUS, CPU_USAGE, MEMORY, MEMORY_USED, FREE, WHOLE_CORES, PAIRED = range(7)
CELL, SIZE_KB, FREE_KB, SMALL, LARGE = range(5)
_NO_RATIOS = (np.nan, np.nan)
Numbers = npt.NDArray[np.float64]


class _Topology(NamedTuple):
    """One topology.

    :ivar cells: float64[c, 7]; whole cores are -1 where none are reported
    :ivar pages: float64[p, 5], each with the number of its cell
    :ivar threads: whether any core has more than one thread
    :ivar ratios: (CPU, RAM) that hold for the cells; NaN: those of the host
    """

    cells: Numbers
    pages: Numbers
    threads: bool
    ratios: tuple[float, float]


class CellColumns(NamedTuple):
    """The cells of the distinct topologies of a table, in their order.

    :ivar starts: int64[t + 1], first cell of each topology
    :ivar cells: float64[c, 7]
    :ivar pages: float64[p, 5], each with the row of its cell
    :ivar threads: bool[t]
    :ivar ratios: float64[t, 2]: CPU, RAM; NaN: those of the host hold
    """

    starts: Ints
    cells: Numbers
    pages: Numbers
    threads: Mask
    ratios: Numbers


def columns(table: HostTable) -> CellColumns:
    """Return the cells of the values of the column ``numa_topology``.

    :raises TurnOver: others have their turn first; what was read is kept
    """
    topology, texts = table.topology, table.coded['numa_topology'].values
    done: list[_Topology] = topology.memoize('topologies read', list)
    while len(done) < len(texts):
        some = texts[len(done) : len(done) + _STEP]
        done += [_read(text) for text in some]
        turns.check()

    def work() -> CellColumns:
        joined.append(_joined(done))
        return joined[0]

    joined: list[CellColumns] = []
    found: CellColumns = topology.memoize('cells', work)
    if joined:
        turns.check()
    return found


def _joined(topologies: Sequence[_Topology]) -> CellColumns:
    counts = np.array([len(one.cells) for one in topologies], np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    pages = np.concatenate([one.pages for one in topologies])
    owners = np.array([len(one.pages) for one in topologies])
    pages[:, CELL] += np.repeat(starts[:-1], owners)
    return CellColumns(
        starts,
        np.concatenate([one.cells for one in topologies]),
        pages,
        np.array([one.threads for one in topologies], np.bool_),
        np.array([one.ratios for one in topologies], np.float64),
    )


def forget_topologies() -> None:
    """Read every topology anew, as a benchmark of first requests needs it."""
    _read.cache_clear()


def why_unreadable(text: bytes | None) -> str:
    """Return the reason where a topology cannot be read, '' where it can."""
    return unreadable.why_unreadable(_parse, 'numa_topology', text)


@functools.lru_cache(_KEPT)
def _read(text: bytes | None) -> _Topology:
    """Read one topology; what cannot be read has no cells."""
    try:
        return _parse(text)
    except unreadable.FAULTS:
        return _Topology(_array([], 7), _array([], 5), False, _NO_RATIOS)


def _parse(text: bytes | None) -> _Topology:
    """Read one topology.

    :raises Exception: one of ``unreadable.FAULTS``: it has another form
    """
    host = msgspec.json.decode(text) if text else None
    cells = (host or {}).get('cells') or []
    rows = [_cell(cell) for cell in cells]
    pages = [row for at, one in enumerate(cells) for row in _pages(at, one)]
    threads = any(
        len(core) > 1 for one in cells for core in one.get('siblings') or []
    )
    ratios = _ratio(host, 'cpu'), _ratio(host, 'ram')
    return _Topology(_array(rows, 7), _array(pages, 5), threads, ratios)


def _ratio(host: dict[str, Any] | None, kind: str) -> float:
    """Return a ratio that a topology states itself; NaN: none.

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
    found = np.array(rows, np.float64).reshape(len(rows), width)
    if not (np.abs(found) <= _LARGEST).all():
        raise ValueError('a figure is too large')
    return found


def _cell(cell: dict[str, Any]) -> tuple[float, ...]:
    """Return the columns of a host cell."""
    cpus = cell.get('cpuset') or ()
    pcpus = cell.get('pcpuset')
    usable = set(cpus if pcpus is None else pcpus)
    free = usable - set(cell.get('pinned_cpus') or ())
    cores = [set(core) & usable for core in cell.get('siblings') or []]
    # A CPU takes a whole core, whose other threads stay idle.
    whole = sum(bool(core) and core <= free for core in cores)
    # Only pairs of threads of one core may be used.
    paired = sum(len(core & free) // 2 * 2 for core in cores if len(core) > 1)
    return (
        len(cpus),
        float(cell.get('cpu_usage') or 0),
        int(cell.get('memory') or 0),
        int(cell.get('memory_usage') or 0),
        len(free),
        whole if cores else -1,
        paired,
    )


def _pages(number: int, cell: dict[str, Any]) -> list[tuple[float, ...]]:
    """Return the columns of the pages of a host cell."""
    pages = cell.get('mempages') or []
    sizes = sorted(int(page['size_kb']) for page in pages)
    rows: list[tuple[float, ...]] = []
    for page in pages:
        size = int(page['size_kb'])
        free = int(page['total']) - int(page.get('used') or 0)
        if size < 1:
            raise ValueError('a page has no size')
        rows.append(
            (number, size, free * size, size == sizes[0], size in sizes[1:])
        )
    return rows


def has_pages(found: CellColumns, page_size: str, memory: int) -> Mask:
    """Return bool[c]: cells with pages of a size that hold the memory.

    :param page_size: small, large, any, or a size in KiB as text
    :param memory: in MB; all of it lies in pages of one size
    """
    pages, needed = found.pages, float(memory * 1024)
    size: Floats = pages[:, SIZE_KB]
    if page_size == 'small':
        allowed = pages[:, SMALL] > 0
    elif page_size == 'large':
        allowed = pages[:, LARGE] > 0
    elif page_size == 'any':
        allowed = np.ones(len(pages), np.bool_)
    else:
        allowed = size == float(page_size)
    good = allowed & (needed % size == 0) & (pages[:, FREE_KB] >= needed)
    mask = np.zeros(len(found.cells), np.bool_)
    mask[pages[good, CELL].astype(np.int64)] = True
    return mask
