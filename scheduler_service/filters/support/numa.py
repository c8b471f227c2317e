"""NUMA topologies: the guest cells that a request has, and their fit.

A guest cell is a part of an instance that has to lie on one NUMA cell of the
host, with its CPUs, memory and pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from scheduler_service.model import Request

_PAGE_SIZE = re.compile(
    r'^\s*(\d+)\s*(k|kb|kib|m|mb|mib|g|gb|gib)?\s*$', re.IGNORECASE
)
_KIB = {'k': 1, 'm': 1024, 'g': 1024 * 1024}
_DEDICATED = frozenset(('dedicated', 'mixed'))


class GuestCell(NamedTuple):
    """One NUMA cell of an instance; memory in MB."""

    cpus: int
    memory: int


class GuestTopology(NamedTuple):
    """What an instance requires of a host's NUMA topology.

    :ivar pinned: whether its CPUs are dedicated to it
    :ivar thread_policy: prefer, require, isolate, or ''
    :ivar isolated_emulator: whether emulator threads get a CPU of their own
    :ivar page_size: small, large, any, a size in KiB as text, or ''
    """

    cells: tuple[GuestCell, ...]
    pinned: bool
    thread_policy: str
    isolated_emulator: bool
    page_size: str


def guest_topology(request: Request) -> GuestTopology | None:
    """Return the topology that a request requires, None for none.

    :raises ValueError: a figure is not a number, or the cells do not add up
        to the flavor
    """
    policy = str(_setting(request, 'hw:cpu_policy', 'hw_cpu_policy') or '')
    page = str(_setting(request, 'hw:mem_page_size', 'hw_mem_page_size') or '')
    nodes = _setting(request, 'hw:numa_nodes', 'hw_numa_nodes')
    pinned = policy in _DEDICATED
    if nodes is None and not pinned and not page:
        return None
    count = int(nodes or 1)
    if count < 1:
        raise ValueError(f'hw:numa_nodes must be at least 1, not {count}')
    emulator = request.flavor.extra_specs.get('hw:emulator_threads_policy')
    return GuestTopology(
        _guest_cells(request, count),
        pinned,
        thread_policy(request),
        emulator == 'isolate',
        _page_size(page),
    )


def thread_policy(request: Request) -> str:
    """Return the CPU thread policy of a request, '' where it has none."""
    policy = _setting(request, 'hw:cpu_thread_policy', 'hw_cpu_thread_policy')
    return str(policy or '')


def fits(
    guest: GuestTopology,
    host: dict[str, Any],
    cpu_ratio: float,
    ram_ratio: float,
) -> bool:
    """Say whether every guest cell can have a host cell of its own.

    :param host: the host's ``numa_topology``
    """
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


def has_threads(host: dict[str, Any]) -> bool:
    """Say whether any core of a host has more than one thread."""
    return any(
        len(core) > 1
        for cell in host.get('cells') or []
        for core in cell.get('siblings') or []
    )


def _can_assign(
    candidates: Sequence[Sequence[int]], number: int, taken: frozenset[int]
) -> bool:
    """Say whether guest cells from *number* on can have cells not taken.

    :param candidates: host cells that each guest cell fits, by index
    """
    if number == len(candidates):
        return True
    return any(
        _can_assign(candidates, number + 1, taken | {index})
        for index in candidates[number]
        if index not in taken
    )


def _setting(request: Request, spec: str, image_property: str) -> Any:
    """Return an extra spec of the flavor, else the image property."""
    value = request.flavor.extra_specs.get(spec)
    if value is None:
        return request.image_properties.get(image_property)
    return value


def _guest_cells(request: Request, count: int) -> tuple[GuestCell, ...]:
    """Return the guest cells: as the extra specs divide them, or even.

    :raises ValueError: the flavor cannot be divided so
    """
    flavor = request.flavor
    specs = flavor.extra_specs
    if any(f'hw:numa_cpus.{number}' in specs for number in range(count)):
        cells = tuple(
            GuestCell(
                len(_cpu_set(specs[f'hw:numa_cpus.{number}'])),
                int(specs[f'hw:numa_mem.{number}']),
            )
            for number in range(count)
        )
        memory = sum(cell.memory for cell in cells)
        if memory != flavor.memory_mb:
            raise ValueError(
                f'the cells of hw:numa_mem have {memory} MB in all, the '
                f'flavor has {flavor.memory_mb} MB'
            )
        return cells
    if flavor.vcpus % count or flavor.memory_mb % count:
        raise ValueError(
            f'{flavor.vcpus} vCPUs and {flavor.memory_mb} MB cannot be '
            f'divided evenly among {count} NUMA cells'
        )
    even = GuestCell(flavor.vcpus // count, flavor.memory_mb // count)
    return (even,) * count


def _cpu_set(text: str) -> set[int]:
    """Parse a list of CPUs such as ``0-2,4,^1``."""
    included: set[int] = set()
    excluded: set[int] = set()
    for item in text.split(','):
        part = item.strip()
        cpus = excluded if part.startswith('^') else included
        first, _, last = part.removeprefix('^').partition('-')
        cpus.update(range(int(first), int(last or first) + 1))
    return included - excluded


def _page_size(text: str) -> str:
    """Return a page size in KiB, or the word as it is.

    :raises ValueError: it is neither a size nor a known word
    """
    match = _PAGE_SIZE.match(text)
    if match is None:
        if text not in ('', 'small', 'large', 'any'):
            raise ValueError(
                f'hw:mem_page_size: {text!r} is not a size such as 2MB, nor '
                'one of small, large, any'
            )
        return text
    unit = (match[2] or 'k')[0].lower()
    return str(int(match[1]) * _KIB[unit])


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
