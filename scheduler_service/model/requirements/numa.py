"""The NUMA topology of an instance, by its flavor and image.

The rules, and what is refused, are those of compute services.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler_service.model.limits import MAX_NUMA_CELLS
from scheduler_service.model.request_parts import (
    MAX_CPUS,
    MAX_PAGE_KB,
    Flavor,
    GuestNuma,
)
from scheduler_service.model.requirements.specs import (
    Specs,
    amount_of,
    is_true,
    property_path,
    reading,
    refusal,
    spec_path,
)

_POLICIES = ('dedicated', 'mixed', 'shared')
_THREADS = ('isolate', 'prefer', 'require')
_EMULATOR = ('isolate', 'share')
_HYPERTHREADS = {'forbidden': 'isolate', 'required': 'require'}
_NAMES = ('cpu_policy', 'cpu_thread_policy', 'numa_nodes', 'mem_page_size',
          'locked_memory')  # fmt: skip
# Without any of these, and without the class PCPU, an instance has no cells.
_SPECS = frozenset(
    (*(f'hw:{name}' for name in _NAMES), 'hw:cpu_realtime', 'hw:pmem',
     'hw:cpu_dedicated_mask', 'hw:emulator_threads_policy')
)  # fmt: skip
_PROPERTIES = frozenset(f'hw_{name}' for name in _NAMES)
_CPUS = re.compile(r'resources([1-9][0-9]*)?:(VCPU|PCPU)')
_HYPERTHREADING = re.compile(r'trait([1-9][0-9]*)?:HW_CPU_HYPERTHREADING')
_BYTES = re.compile(r'([0-9]*\.?[0-9]+)([KMGTPE]?)i?(b|bit|B)')
_WITH_DEDICATED = 'it with dedicated CPUs only'
_WORDS = ('small', 'large', 'any')


class GuestCell(NamedTuple):
    """One NUMA cell of an instance; memory in MB.

    :ivar shared: CPUs that it shares with other instances
    :ivar dedicated: CPUs that no other instance gets
    :ivar thread_policy: of dedicated CPUs: prefer, require, isolate, or ''
    :ivar page_size: small, large, any, a size in KiB as text, or ''
    """

    shared: int
    dedicated: int
    memory: int
    thread_policy: str = ''
    page_size: str = ''


class GuestTopology(NamedTuple):
    """The NUMA topology that an instance requires.

    :ivar pinned: whether it has dedicated CPUs, in any of its cells
    :ivar isolated_emulator: whether emulator threads get a CPU of their own
    :ivar physnets: physical networks that it is connected to
    :ivar tunneled: whether it is connected to a tunneled network
    """

    cells: tuple[GuestCell, ...]
    pinned: bool = False
    isolated_emulator: bool = False
    physnets: frozenset[str] = frozenset()
    tunneled: bool = False

    @property
    def shares(self) -> bool:
        """Whether limits of shared CPUs and memory apply to its cells."""
        return not self.pinned or self.shared > 0

    @property
    def dedicated(self) -> int:
        """How many CPUs are dedicated to it, without its emulator's."""
        return sum(cell.dedicated for cell in self.cells)

    @property
    def shared(self) -> int:
        """How many CPUs it shares with other instances."""
        return sum(cell.shared for cell in self.cells)

    def emulator_cpus(self, number: int) -> int:
        """Return how many CPUs a cell needs for emulator threads."""
        return int(self.pinned and self.isolated_emulator and not number)


def explicit(guest: GuestNuma) -> GuestTopology:
    """Return the topology that a request states itself."""

    def either(value: Any, default: Any) -> Any:
        return default if value is None else value

    cells = []
    for cell in guest.cells:
        dedicated = either(cell.dedicated, cell.cpus if guest.pinned else 0)
        policy = either(cell.thread_policy, guest.thread_policy)
        page = either(cell.page_size, guest.page_size)
        shared = cell.cpus - dedicated
        cells.append(
            GuestCell(shared, dedicated, cell.memory_mb, policy, page)
        )
    return GuestTopology(
        tuple(cells),
        guest.pinned,
        guest.isolated_emulator,
        frozenset(guest.physnets),
        guest.tunneled,
    )


def derived(specs: Specs, flavor: Flavor) -> GuestTopology | None:
    """Return the topology that follows from flavor and image, None for none.

    :raises InvalidRequest: a figure is not a number, or the cells do not add
        up to the flavor; a word means nothing, or the image asks for what the
        flavor does not allow
    """
    stated = _stated_cpus(specs.extra)
    if (
        not stated
        and _SPECS.isdisjoint(specs.extra)
        and _PROPERTIES.isdisjoint(specs.image)
    ):
        return None
    if flavor.vcpus > MAX_CPUS:
        raise refusal(
            'flavor.vcpus',
            f'at most {MAX_CPUS} for an instance with NUMA cells',
            flavor.vcpus,
        )
    key = 'hw:emulator_threads_policy'
    emulator = specs.word(
        spec_path(key), specs.extra.get(key) or '', _EMULATOR
    )
    policy = _cpu_policy(specs, flavor, stated, emulator == 'isolate')
    threads = _thread_policy(specs)
    dedicated = _dedicated_cpus(specs, flavor, policy, emulator)
    if policy not in ('dedicated', 'mixed'):
        for name, value in (
            ('cpu_thread_policy', threads),
            ('emulator_threads_policy', emulator == 'isolate' and emulator),
        ):
            if value:
                specs.wrong(specs.path(name), _WITH_DEDICATED, value)
    nodes = _nodes(specs)
    page = _page_size(specs)
    if is_true(specs.value('locked_memory')) and not any(
        specs.both('mem_page_size')
    ):
        specs.wrong(
            specs.path('locked_memory'), 'it with hw:mem_page_size only', True
        )
    pmem = specs.extra.get('hw:pmem', '').replace(',', '').strip()
    if not (nodes or page or pmem or policy in ('dedicated', 'mixed')):
        return None
    cells = _cells(specs, flavor, nodes or 1)
    return GuestTopology(
        tuple(
            GuestCell(
                (cpus & ~dedicated).bit_count(),
                (cpus & dedicated).bit_count(),
                memory,
                threads,
                page,
            )
            for cpus, memory in cells
        ),
        policy in ('dedicated', 'mixed'),
        emulator == 'isolate',
    )


def _stated_cpus(extra: Mapping[str, str]) -> dict[str, int]:
    """Return amounts of VCPU and PCPU that extra specs state, above 0."""
    amounts: dict[str, int] = {}
    for key, value in extra.items():
        match = _CPUS.fullmatch(key) if key.endswith('CPU') else None
        amount = amount_of(value) if match else None
        if match and amount:
            amounts[match[2]] = amounts.get(match[2], 0) + amount
    return amounts


def _cpu_policy(
    specs: Specs,
    flavor: Flavor,
    stated: Mapping[str, int],
    isolated_emulator: bool,
) -> str:
    """Return dedicated, mixed, shared or nothing."""
    own, in_image = specs.both('cpu_policy')
    own = specs.word(spec_path('hw:cpu_policy'), own, _POLICIES)
    allowed = {'mixed': ('mixed', 'shared'), 'shared': ('shared',)}
    in_image = specs.word(
        property_path('hw_cpu_policy'), in_image, allowed.get(own, _POLICIES)
    )
    policy = own or in_image
    if not stated:
        return policy
    if policy or len(stated) > 1:
        specs.wrong(
            specs.path('cpu_policy') if policy else spec_path('resources'),
            'one of hw:cpu_policy, resources:VCPU and resources:PCPU',
            policy or stated,
        )
        return policy
    if 'VCPU' in stated:
        return 'shared'
    pcpus = flavor.vcpus + isolated_emulator
    if stated['PCPU'] != pcpus:
        specs.wrong(
            spec_path('resources:PCPU'),
            f'{pcpus}, as many as the instance has',
            stated['PCPU'],
        )
    return 'dedicated'


def _thread_policy(specs: Specs) -> str:
    own, in_image = specs.both('cpu_thread_policy')
    own = specs.word(spec_path('hw:cpu_thread_policy'), own, _THREADS)
    in_image = specs.word(
        property_path('hw_cpu_thread_policy'),
        in_image,
        _THREADS if own in ('', 'prefer') else (own,),
    )
    policy = own or in_image
    for key, value in specs.extra.items():
        if _HYPERTHREADING.fullmatch(key):
            trait = value
            break
    else:
        trait = specs.image.get('trait:HW_CPU_HYPERTHREADING', '')
    if policy and trait:
        specs.wrong(
            specs.path('cpu_thread_policy'),
            'it, or the trait HW_CPU_HYPERTHREADING',
            policy,
        )
    return policy or _HYPERTHREADS.get(trait, '')


def _dedicated_cpus(
    specs: Specs, flavor: Flavor, policy: str, emulator: str
) -> int:
    """Return a bit for each CPU that is dedicated to the instance."""
    every = (1 << flavor.vcpus) - 1
    mask = specs.extra.get('hw:cpu_dedicated_mask') or ''
    realtime = 0
    if is_true(specs.extra.get('hw:cpu_realtime')):
        own, in_image = specs.both('cpu_realtime_mask')
        text = in_image or own
        place = (
            property_path('hw_cpu_realtime_mask')
            if in_image
            else spec_path('hw:cpu_realtime_mask')
        )
        realtime = _masked(place, text, every) if text else every
        if not realtime or (realtime == every and not emulator):
            specs.wrong(
                place,
                'some CPUs, and not all without hw:emulator_threads_policy',
                text,
            )
        if policy not in ('dedicated', 'mixed'):
            specs.wrong(spec_path('hw:cpu_realtime'), _WITH_DEDICATED, 'true')
    place = spec_path('hw:cpu_dedicated_mask')
    chosen = _masked(place, mask, every) if mask else 0
    if mask and chosen in (0, every):
        specs.wrong(place, 'some CPUs of the flavor, and not all', mask)
    if policy != 'mixed':
        if mask:
            specs.wrong(place, 'it with hw:cpu_policy=mixed only', mask)
        return every if policy == 'dedicated' else 0
    if bool(mask) == bool(realtime):
        specs.wrong(
            spec_path('hw:cpu_policy'),
            'hw:cpu_dedicated_mask or a realtime mask with it',
            policy,
        )
    return chosen or realtime


def _masked(place: str, mask: str, every: int) -> int:
    """Return a bit for each CPU that a mask leaves of a flavor's.

    :raises InvalidRequest: it is no list of CPUs of the flavor
    """
    if mask.strip().startswith('^'):
        mask = f'0-{every.bit_length() - 1},{mask}'
    with reading(place, 'a list of CPUs such as 0-2,4,^1', mask):
        chosen = _cpus(mask)
        if chosen & ~every:
            raise ValueError(f'the flavor has {every.bit_length()} CPUs')
    return chosen


def _nodes(specs: Specs) -> int:
    """Return the number of cells; 0: it is not stated."""
    own, in_image = specs.both('numa_nodes')
    if own and in_image:
        specs.wrong(
            property_path('hw_numa_nodes'),
            'no number beside that of hw:numa_nodes',
            in_image,
        )
    value = own or in_image
    place = specs.path('numa_nodes')
    with reading(place, f'a number from 1 to {MAX_NUMA_CELLS}', value):
        count = int(value or 0)
        if value and not 1 <= count <= MAX_NUMA_CELLS:
            raise ValueError('out of bounds')
    return count


def _page_size(specs: Specs) -> str:
    """Return the size of pages, in KiB, or a word; empty: not stated."""
    own, in_image = specs.both('mem_page_size')
    size = _pages(spec_path('hw:mem_page_size'), own)
    if not in_image:
        return size
    if size not in ('large', 'any'):
        specs.wrong(
            property_path('hw_mem_page_size'),
            'it with hw:mem_page_size=large or any only',
            in_image,
        )
        return size
    return _pages(property_path('hw_mem_page_size'), in_image)


def _pages(place: str, text: str) -> str:
    if not text or text in _WORDS:
        return text
    with reading(
        place, 'small, large, any, or a size such as 2MB or 2048', text
    ):
        if text.isascii() and text.isdigit():
            return _kib(int(text))
        match = _BYTES.fullmatch(text)
        if match is None:
            raise ValueError('neither a size nor a word')
        size = float(match[1]) * 1024 ** ' KMGTPE'.index(match[2] or ' ')
        return _kib(math.ceil(size if match[3] == 'B' else size / 8) // 1024)


def _kib(size: int) -> str:
    if size > MAX_PAGE_KB:
        raise ValueError('too large')
    return str(size) if size else ''


def _cells(specs: Specs, flavor: Flavor, count: int) -> list[tuple[int, int]]:
    """Return (a bit for each CPU, MB) of the cells.

    Those that flavor or image describe, or equal shares.
    """
    cpus = _listed(specs, 'numa_cpus')
    memory = _listed(specs, 'numa_mem')
    place = specs.path('numa_nodes')
    if cpus is None and memory is None:
        with reading(place, 'cells that add up to the flavor', count):
            if flavor.vcpus % count or flavor.memory_mb % count:
                raise ValueError(
                    f'{flavor.vcpus} vCPUs and {flavor.memory_mb} MB cannot '
                    f'be divided evenly among {count} NUMA cells'
                )
        width = flavor.vcpus // count
        return [
            (((1 << width) - 1) << (cell * width), flavor.memory_mb // count)
            for cell in range(count)
        ]
    with reading(place, 'cells that add up to the flavor', count):
        if cpus is None or memory is None:
            raise ValueError('hw:numa_cpus and hw:numa_mem go together')
        if not len(cpus) == len(memory) == count:
            raise ValueError(
                f'{len(cpus)} have CPUs, {len(memory)} have memory'
            )
        cells = [
            (_cpus(text), int(size))
            for text, size in zip(cpus, memory, strict=True)
        ]
        taken = 0
        for own, _ in cells:
            if own & taken:
                raise ValueError('a CPU is in two cells')
            taken |= own
        if taken != (1 << flavor.vcpus) - 1:
            raise ValueError(
                f'their CPUs are not the {flavor.vcpus} of the flavor'
            )
        total = sum(size for _, size in cells)
        if total != flavor.memory_mb or any(size < 0 for _, size in cells):
            raise ValueError(
                f'the cells of hw:numa_mem have {total} MB in all, the '
                f'flavor has {flavor.memory_mb} MB'
            )
    return cells


def _listed(specs: Specs, name: str) -> list[str] | None:
    """Return the values for each cell from 0 on; None: there are none.

    :raises InvalidRequest: flavor and image have some
    """
    lists = []
    for values, key in (
        (specs.extra, f'hw:{name}'),
        (specs.image, f'hw_{name}'),
    ):
        keys = (f'{key}.{cell}' for cell in range(MAX_NUMA_CELLS))
        stated = itertools.takewhile(values.__contains__, keys)
        lists.append([str(values[each]) for each in stated])
    if all(lists):
        specs.wrong(
            property_path(f'hw_{name}.0'),
            f'nothing beside hw:{name}',
            lists[1][0],
        )
    return lists[0] or lists[1] or None


def _cpus(text: str) -> int:
    """Return a bit for each CPU of a list such as ``0-2,4,^1``.

    :raises ValueError: it is no list of CPUs, or their numbers are too large
    """
    included = excluded = 0
    for item in text.split(','):
        part = item.strip()
        if not part:
            continue
        first, dash, last = part.removeprefix('^').partition('-')
        start = int(first)
        end = int(last) if dash else start
        if not 0 <= start <= end < MAX_CPUS:
            raise ValueError(f'expected CPUs from 0 to {MAX_CPUS - 1}')
        cpus = (1 << (end + 1)) - (1 << start)
        if part.startswith('^'):
            excluded |= cpus
        else:
            included |= cpus
    return included & ~excluded
