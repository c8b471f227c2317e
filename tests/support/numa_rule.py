"""The rule of NUMATopologyFilter in plain words: one host, every assignment.

It tries host cells for one guest cell after the other, which takes long where
there are many. The filter has to say the same of every host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_service.model.requirements.numa import GuestCell, GuestTopology


def passes(
    guest: GuestTopology, host: Any, cpu_ratio: float, ram_ratio: float
) -> bool:
    """Say whether every guest cell can have a host cell of its own."""
    if not host:
        return False
    host_cells = host.get('cells') or []
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
    if not _has_memory(guest, cell, host_cell):
        return False
    if guest.pinned:
        emulator_cpus = int(guest.isolated_emulator and number == 0)
        if not _has_dedicated_cpus(cell, emulator_cpus, host_cell):
            return False
    if guest.pinned and not any(each.shared for each in guest.cells):
        return True
    cpus = len(set(host_cell.get('cpuset') or ()))
    used = float(host_cell.get('cpu_usage') or 0)
    total = int(host_cell.get('memory') or 0)
    taken = int(host_cell.get('memory_usage') or 0)
    return (
        cell.shared <= cpus
        and used + cell.shared <= cpus * cpu_ratio
        and taken + cell.memory <= total * ram_ratio
    )


def _has_memory(
    guest: GuestTopology, cell: GuestCell, host_cell: dict[str, Any]
) -> bool:
    """Say whether the memory is there; pinned guests do not overcommit."""
    if cell.page_size:
        return _has_pages(cell.page_size, cell, host_cell, True)
    if host_cell.get('mempages'):
        return _has_pages('small', cell, host_cell, guest.pinned)
    total = int(host_cell.get('memory') or 0)
    used = int(host_cell.get('memory_usage') or 0)
    return cell.memory <= total - (used if guest.pinned else 0)


def _has_pages(
    page_size: str, cell: GuestCell, host_cell: dict[str, Any], free: bool
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
        and _kb(page, free) >= needed_kb
        for page in pages
    )


def _kb(page: dict[str, Any], free: bool) -> int:
    taken = int(page.get('used') or 0) + int(page.get('reserved') or 0)
    return (int(page['total']) - taken * free) * int(page['size_kb'])


def _has_dedicated_cpus(
    cell: GuestCell, emulator_cpus: int, host_cell: dict[str, Any]
) -> bool:
    """Say whether enough CPUs are free, placed as the policy requires."""
    cpus, pcpus = host_cell.get('cpuset') or (), host_cell.get('pcpuset')
    usable = set(cpus if pcpus is None else pcpus)
    free = usable - set(host_cell.get('pinned_cpus') or ())
    if len(free) < cell.dedicated + emulator_cpus:
        return False
    if cell.dedicated < emulator_cpus:
        # Emulator threads go beside dedicated CPUs.
        return False
    cores = [set(core) for core in host_cell.get('siblings') or []]
    threads = max(map(len, cores), default=0)
    left = [len(core & free) for core in cores if core & free]
    if cell.thread_policy == 'isolate' and cores:
        # Each CPU takes a whole core, whose other threads stay idle.
        if not cell.dedicated or (threads > 1 and usable != set(cpus)):
            return False
        whole = [count for count in left if count >= threads]
        return (
            len(whole) >= cell.dedicated
            and len(left) >= cell.dedicated + emulator_cpus
        )
    if cell.thread_policy == 'require':
        # The same number of threads is used of each core, at least two.
        return any(
            each * sum(count >= each for count in left)
            >= max(cell.dedicated, 1)
            for each in range(2, threads + 1)
        )
    return True
