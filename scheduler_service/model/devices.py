"""Parts of a request that say which devices and NUMA cells it needs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from scheduler_service.model import numa_limits
from scheduler_service.model.inventory import Count, Document

MAX_DEVICES = 4096
MAX_CPUS = 4096
MAX_PAGE_KB = 10**15 - 1
_PAGE_SIZE = r'^(|small|large|any|[0-9]{1,15})\Z'


class PciRequest(Document):
    """PCI devices of one kind.

    :ivar alternatives: a device has to match one of them: properties such as
        ``vendor_id`` with their values, ``dev_type`` among them; None as a
        value: the device does not have the property
    :ivar name: of the alias that they stand for, for reasons
    """

    alternatives: Annotated[
        list[dict[str, str | None]], msgspec.Meta(min_length=1)
    ]
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)] = 1
    name: str | None = None


class GuestNumaCell(Document):
    """A NUMA cell of an instance: number of CPUs, and memory in MB."""

    cpus: Annotated[int, msgspec.Meta(ge=0, le=MAX_CPUS)]
    memory_mb: Count


class GuestNuma(Document):
    """The NUMA topology of an instance.

    :ivar pinned: whether its CPUs are dedicated to it
    :ivar isolated_emulator: whether emulator threads get a CPU of their own
    :ivar page_size: small, large, any, a size in KiB as text, or empty
    """

    cells: Annotated[
        list[GuestNumaCell],
        msgspec.Meta(min_length=1, max_length=numa_limits.MAX_NODES),
    ]
    pinned: bool = False
    thread_policy: Literal['', 'prefer', 'require', 'isolate'] = ''
    isolated_emulator: bool = False
    page_size: Annotated[str, msgspec.Meta(pattern=_PAGE_SIZE)] = ''
