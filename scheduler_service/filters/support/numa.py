"""NUMA: what an instance asks for, and whether a host's cells can give it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from scheduler_service.model import Request

_SIZE = re.compile(r'^\s*(\d+)\s*(k|kb|kib|m|mb|mib|g|gb|gib)?\s*$', re.I)
_UNITS = {'k': 1, 'm': 1024, 'g': 1024 * 1024}
_DEDICATED = frozenset(('dedicated', 'mixed'))


class GuestCell(NamedTuple):
    """One NUMA cell that an instance asks for; memory in MB."""

    cpus: int
    memory: int


class Guest(NamedTuple):
    """What an instance asks of a host's topology.

    :ivar pinned: whether its CPUs are its own
    :ivar threads: thread policy: prefer, require, isolate, or ''
    :ivar emulator: whether emulator threads get a CPU of their own
    :ivar page: small, large, any, a size in KiB as text, or ''
    """

    cells: tuple[GuestCell, ...]
    pinned: bool
    threads: str
    emulator: bool
    page: str


def guest_of(request: Request) -> Guest | None:
    """Return the topology asked for, None where none is.

    :raises ValueError: a figure is no number, or cells do not add up
    """
    policy = str(_wish(request, 'hw:cpu_policy', 'hw_cpu_policy') or '')
    page = str(_wish(request, 'hw:mem_page_size', 'hw_mem_page_size') or '')
    nodes = _wish(request, 'hw:numa_nodes', 'hw_numa_nodes')
    pinned = policy in _DEDICATED
    if nodes is None and not pinned and not page:
        return None
    count = int(nodes or 1)
    if count < 1:
        raise ValueError('hw:numa_nodes is at least 1')
    emulator = request.flavor.extra_specs.get('hw:emulator_threads_policy')
    return Guest(
        _cells(request, count),
        pinned,
        thread_policy(request),
        emulator == 'isolate',
        _page(page),
    )


def thread_policy(request: Request) -> str:
    """Return the thread policy asked for, '' where none is."""
    found = _wish(request, 'hw:cpu_thread_policy', 'hw_cpu_thread_policy')
    return str(found or '')


def fits(
    guest: Guest, host: dict[str, Any], cpu_ratio: float, ram_ratio: float
) -> bool:
    """Whether every guest cell finds a host cell of its own."""
    cells = host.get('cells') or []
    able = [
        [
            at
            for at, cell in enumerate(cells)
            if _fits_cell(guest, number, cell, cpu_ratio, ram_ratio)
        ]
        for number in range(len(guest.cells))
    ]
    return _assign(able, 0, frozenset())


def has_threads(host: dict[str, Any]) -> bool:
    """Whether any core of the host has more than one thread."""
    return any(
        len(core) > 1
        for cell in host.get('cells') or []
        for core in cell.get('siblings') or []
    )


def _assign(
    able: Sequence[Sequence[int]], number: int, taken: frozenset[int]
) -> bool:
    if number == len(able):
        return True
    return any(
        _assign(able, number + 1, taken | {at})
        for at in able[number]
        if at not in taken
    )


def _wish(request: Request, spec: str, prop: str) -> Any:
    """Return what the flavor says, else what the image does."""
    value = request.flavor.extra_specs.get(spec)
    return request.image_properties.get(prop) if value is None else value


def _cells(request: Request, count: int) -> tuple[GuestCell, ...]:
    flavor = request.flavor
    specs = flavor.extra_specs
    if any(f'hw:numa_cpus.{number}' in specs for number in range(count)):
        cells = tuple(
            GuestCell(
                len(_cpus(specs[f'hw:numa_cpus.{number}'])),
                int(specs[f'hw:numa_mem.{number}']),
            )
            for number in range(count)
        )
        if sum(cell.memory for cell in cells) != flavor.memory_mb:
            raise ValueError('hw:numa_mem does not add up to the memory')
        return cells
    if flavor.vcpus % count or flavor.memory_mb % count:
        raise ValueError(f'{count} cells do not share the flavor evenly')
    even = GuestCell(flavor.vcpus // count, flavor.memory_mb // count)
    return (even,) * count


def _cpus(text: str) -> set[int]:
    """Parse ``0-2,4,^1``."""
    found: set[int] = set()
    gone: set[int] = set()
    for part in text.split(','):
        one = part.strip()
        where = gone if one.startswith('^') else found
        first, _, last = one.removeprefix('^').partition('-')
        where.update(range(int(first), int(last or first) + 1))
    return found - gone


def _page(text: str) -> str:
    """Return a page size in KiB, or the word as it is."""
    match = _SIZE.match(text)
    if match is None:
        if text not in ('', 'small', 'large', 'any'):
            raise ValueError(f'{text!r} is no page size')
        return text
    unit = (match[2] or 'k')[0].lower()
    return str(int(match[1]) * _UNITS[unit])


def _fits_cell(
    guest: Guest,
    number: int,
    cell: dict[str, Any],
    cpu_ratio: float,
    ram_ratio: float,
) -> bool:
    wanted = guest.cells[number]
    if guest.page and not _has_pages(guest.page, wanted, cell):
        return False
    if not _has_memory(guest, wanted, cell, ram_ratio):
        return False
    if guest.pinned:
        extra = int(guest.emulator and number == 0)
        return _has_own_cpus(guest, wanted.cpus, extra, cell)
    size = len(cell.get('cpuset') or ())
    used = float(cell.get('cpu_usage') or 0)
    return wanted.cpus <= size and used + wanted.cpus <= size * cpu_ratio


def _has_memory(
    guest: Guest, wanted: GuestCell, cell: dict[str, Any], ratio: float
) -> bool:
    total = int(cell.get('memory') or 0)
    used = int(cell.get('memory_usage') or 0)
    if guest.pinned:
        return wanted.memory <= total - used
    return wanted.memory <= total and used + wanted.memory <= total * ratio


def _has_pages(page: str, wanted: GuestCell, cell: dict[str, Any]) -> bool:
    pages = cell.get('mempages') or []
    sizes = sorted(int(one['size_kb']) for one in pages)
    if not sizes:
        return False
    allowed = {
        'small': sizes[:1],
        'large': sizes[1:],
        'any': sizes,
    }.get(page)
    if allowed is None:
        allowed = [int(page)]
    need = wanted.memory * 1024
    return any(
        int(one['size_kb']) in allowed
        and need % int(one['size_kb']) == 0
        and (int(one['total']) - int(one.get('used') or 0))
        * int(one['size_kb'])
        >= need
        for one in pages
    )


def _has_own_cpus(
    guest: Guest, cpus: int, extra: int, cell: dict[str, Any]
) -> bool:
    every = cell.get('pcpuset')
    every = set(cell.get('cpuset') or () if every is None else every)
    free = every - set(cell.get('pinned_cpus') or ())
    if len(free) < cpus + extra:
        return False
    cores = [set(core) & every for core in cell.get('siblings') or []]
    if guest.threads == 'isolate' and cores:
        return sum(bool(core) and core <= free for core in cores) >= cpus
    if guest.threads == 'require':
        whole = sum(len(c & free) // 2 * 2 for c in cores if len(c) > 1)
        return whole >= cpus
    return True
