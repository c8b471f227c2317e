"""The rule of NUMATopologyFilter in plain words: one host, every assignment.

It tries host cells for one guest cell after the other, which takes long where
there are many. The filter has to say the same of every host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_service.filters.numa import GuestCell, GuestTopology


def passes(
    guest: GuestTopology, host: Any, cpu_ratio: float, ram_ratio: float
) -> bool:
    """Say whether every guest cell can have a host cell of its own."""
    if not host:
        return False
    host_cells = host.get('cells') or []
    if guest.thread_policy == 'require' and not any(
        len(core) > 1
        for cell in host_cells
        for core in cell.get('siblings') or []
    ):
        return False
    candidates = [
        [
            index
            for index, host_cell in enumerate(host_cells)
            if _fits_cell(guest, number, host_cell, cpu_ratio, ram_ratio)
        ]
        for number in range(len(guest.cells))
    ]
    return _can_assign(candidates, 0, frozenset())


def _can_assign(
    candidates: Sequence[Sequence[int]], number: int, taken: frozenset[int]
) -> bool:
    """Say whether guest cells from *number* on can have cells not taken."""
    if number == len(candidates):
        return True
    return any(
        _can_assign(candidates, number + 1, taken | {index})
        for index in candidates[number]
        if index not in taken
    )


def _fits_cell(
    guest: GuestTopology,
    number: int,
    host_cell: dict[str, Any],
    cpu_ratio: float,
    ram_ratio: float,
) -> bool:
    """Say whether a guest cell fits a host cell that has no other one."""
    cell = guest.cells[number]
    if guest.page_size and not _has_pages(guest.page_size, cell, host_cell):
        return False
    if not _has_memory(guest, cell, host_cell, ram_ratio):
        return False
    if guest.pinned:
        emulator_cpus = int(guest.isolated_emulator and number == 0)
        return _has_dedicated_cpus(guest, cell.cpus, emulator_cpus, host_cell)
    cpus = len(host_cell.get('cpuset') or ())
    used = float(host_cell.get('cpu_usage') or 0)
    return cell.cpus <= cpus and used + cell.cpus <= cpus * cpu_ratio


def _has_memory(
    guest: GuestTopology,
    cell: GuestCell,
    host_cell: dict[str, Any],
    ratio: float,
) -> bool:
    """Say whether the memory is there; pinned guests do not overcommit."""
    total = int(host_cell.get('memory') or 0)
    used = int(host_cell.get('memory_usage') or 0)
    if guest.pinned:
        return cell.memory <= total - used
    return cell.memory <= total and used + cell.memory <= total * ratio


def _has_pages(
    page_size: str, cell: GuestCell, host_cell: dict[str, Any]
) -> bool:
    """Say whether pages of one size that is allowed hold the memory."""
    pages = host_cell.get('mempages') or []
    sizes = sorted(int(page['size_kb']) for page in pages)
    if not sizes:
        return False
    allowed = {
        'small': sizes[:1],
        'large': sizes[1:],
        'any': sizes,
    }.get(page_size)
    if allowed is None:
        allowed = [int(page_size)]
    needed_kb = cell.memory * 1024
    return any(
        int(page['size_kb']) in allowed
        and needed_kb % int(page['size_kb']) == 0
        and _free_kb(page) >= needed_kb
        for page in pages
    )


def _free_kb(page: dict[str, Any]) -> int:
    free = int(page['total']) - int(page.get('used') or 0)
    return free * int(page['size_kb'])


def _has_dedicated_cpus(
    guest: GuestTopology,
    cpus: int,
    emulator_cpus: int,
    host_cell: dict[str, Any],
) -> bool:
    """Say whether enough CPUs are free, placed as the policy requires."""
    pcpus = host_cell.get('pcpuset')
    usable = set(host_cell.get('cpuset') or () if pcpus is None else pcpus)
    free = usable - set(host_cell.get('pinned_cpus') or ())
    if len(free) < cpus + emulator_cpus:
        return False
    cores = [set(core) & usable for core in host_cell.get('siblings') or []]
    if guest.thread_policy == 'isolate' and cores:
        # Each CPU takes a whole core, whose other threads stay idle.
        return sum(bool(core) and core <= free for core in cores) >= cpus
    if guest.thread_policy == 'require':
        # Only pairs of threads of one core may be used.
        paired = sum(
            len(core & free) // 2 * 2 for core in cores if len(core) > 1
        )
        return paired >= cpus
    return True
