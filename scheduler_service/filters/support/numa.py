"""NUMA topologies of instances: the guest cells that a request has.

A guest cell is a part of an instance that has to lie on one NUMA cell of the
host, with its CPUs, memory and pages.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from scheduler_service.filters.support.requested import (
    reading,
    setting_path,
)
from scheduler_service.model import Request
from scheduler_service.model.limits import MAX_NUMA_CELLS
from scheduler_service.model.request import GuestNuma

_PAGE_SIZE = re.compile(
    r'^\s*(\d+)\s*(k|kb|kib|m|mb|mib|g|gb|gib)?\s*$', re.IGNORECASE
)
# The extra spec and the image property of the same meaning.
_NODES = 'hw:numa_nodes', 'hw_numa_nodes'
_PAGES = 'hw:mem_page_size', 'hw_mem_page_size'
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

    :raises InvalidRequest: a figure is not a number, or the cells do not add
        up to the flavor
    """
    if request.numa_topology is not None:
        return _explicit(request.numa_topology)
    policy = str(_setting(request, 'hw:cpu_policy', 'hw_cpu_policy') or '')
    page = str(_setting(request, *_PAGES) or '')
    nodes = _setting(request, *_NODES)
    pinned = policy in _DEDICATED
    if nodes is None and not pinned and not page:
        return None
    place = setting_path(request, *_NODES)
    with reading(place, f'a number from 1 to {MAX_NUMA_CELLS}', nodes):
        count = int(nodes or 1)
        if not 1 <= count <= MAX_NUMA_CELLS:
            raise ValueError('out of bounds')
    with reading(place, 'cells that add up to the flavor', count):
        cells = _guest_cells(request, count)
    with reading(
        setting_path(request, *_PAGES),
        'small, large, any, or a size such as 2MB',
        page,
    ):
        page = _page_size(page)
    emulator = request.flavor.extra_specs.get('hw:emulator_threads_policy')
    return GuestTopology(
        cells, pinned, thread_policy(request), emulator == 'isolate', page
    )


def _explicit(stated: GuestNuma) -> GuestTopology:
    """Return a topology that the request states itself."""
    return GuestTopology(
        tuple(GuestCell(cell.cpus, cell.memory_mb) for cell in stated.cells),
        stated.pinned,
        stated.thread_policy,
        stated.isolated_emulator,
        stated.page_size,
    )


def thread_policy(request: Request) -> str:
    """Return the CPU thread policy of a request, '' where it has none."""
    if request.numa_topology is not None:
        return request.numa_topology.thread_policy
    policy = _setting(request, 'hw:cpu_thread_policy', 'hw_cpu_thread_policy')
    return str(policy or '')


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
                _cpu_count(specs[f'hw:numa_cpus.{number}']),
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


def _cpu_count(text: str) -> int:
    """Return how many CPUs a list such as ``0-2,4,^1`` names."""
    included = excluded = 0
    for item in text.split(','):
        part = item.strip()
        first, _, last = part.removeprefix('^').partition('-')
        # A bit for each CPU; what a request may name is bounded.
        cpus = (1 << (int(last or first) + 1)) - (1 << int(first))
        if part.startswith('^'):
            excluded |= max(cpus, 0)
        else:
            included |= max(cpus, 0)
    return (included & ~excluded).bit_count()


def _page_size(text: str) -> str:
    """Return a page size in KiB, or the word as it is.

    :raises ValueError: it is neither a size nor a known word
    """
    match = _PAGE_SIZE.match(text)
    if match is None:
        if text not in ('', 'small', 'large', 'any'):
            raise ValueError('neither a size nor a word')
        return text
    unit = (match[2] or 'k')[0].lower()
    return str(int(match[1]) * _KIB[unit])
