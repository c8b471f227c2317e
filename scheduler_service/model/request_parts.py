"""Parts of request documents: flavor, image, devices, NUMA cells, groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from scheduler_service.model.inventory import (
    Count,
    Document,
    ResourceClass,
    Trait,
)
from scheduler_service.model.limits import MAX_NUMA_CELLS, Short

# Extra specs of a flavor, and properties of an image. Some filters look at
# all hosts for each of them, and all other requests wait meanwhile.
MAX_SETTINGS = 512
MAX_GROUPS = 64
MAX_DEVICES = 4096
MAX_CPUS = 4096
MAX_PAGE_KB = 10**15 - 1
_PAGE_SIZE = r'^(|small|large|any|[0-9]{1,15})\Z'


class Flavor(Document):
    """The flavor: size and extra specs of one instance."""

    flavorid: str | None = None
    name: str | None = None
    vcpus: Count = 0
    memory_mb: Count = 0
    root_gb: Count = 0
    ephemeral_gb: Count = 0
    swap: Count = 0
    extra_specs: Annotated[
        dict[str, str], msgspec.Meta(max_length=MAX_SETTINGS)
    ] = {}


class Image(Document):
    """The image to boot: what matters for scheduling."""

    id: str | None = None
    properties: Annotated[
        dict[str, Any], msgspec.Meta(max_length=MAX_SETTINGS)
    ] = {}
    disk_format: str | None = None


class Retry(Document):
    """Earlier attempts to build the same instance."""

    num_attempts: Count = 0
    hosts: list[tuple[str, str]] = []


class Destination(Document):
    """A host, node, cell or aggregates that the caller requires.

    :ivar aggregates: uuids, each entry one or several with commas between
        them; a host has to be in one aggregate of each entry
    :ivar forbidden_aggregates: uuids; a host must be in none of them
    """

    host: str | None = None
    node: str | None = None
    cell: str | None = None
    allow_cross_cell_move: bool = False
    aggregates: list[str] = []
    forbidden_aggregates: list[str] = []


class PciRequest(Document):
    """PCI devices of one kind.

    :ivar alternatives: a device has to match one of them: properties such as
        ``vendor_id`` with their values, ``dev_type`` among them; None as a
        value: the device does not have the property
    :ivar name: of the alias that they stand for, for reasons
    :ivar numa_policy: how near they are to the NUMA cells of the instance
    :ivar groups: prefix, before a hyphen, of the suffixes of the resource
        groups that claim the devices, a group for each; None: in no group
    """

    alternatives: Annotated[
        list[dict[str, str | None]], msgspec.Meta(min_length=1)
    ]
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)] = 1
    name: str | None = None
    numa_policy: Literal['legacy', 'preferred', 'required', 'socket'] = (
        'legacy'
    )
    groups: Short | None = None


ThreadPolicy = Literal['', 'prefer', 'require', 'isolate']
PageSize = Annotated[str, msgspec.Meta(pattern=_PAGE_SIZE)]


class GuestNumaCell(Document):
    """A NUMA cell of an instance: number of CPUs, and memory in MB.

    :ivar dedicated: how many of its CPUs are dedicated to the instance; None:
        all of them if the topology is pinned, else none
    :ivar thread_policy: None: that of the topology
    :ivar page_size: None: that of the topology
    """

    cpus: Annotated[int, msgspec.Meta(ge=0, le=MAX_CPUS)]
    memory_mb: Count
    dedicated: Annotated[int, msgspec.Meta(ge=0, le=MAX_CPUS)] | None = None
    thread_policy: ThreadPolicy | None = None
    page_size: PageSize | None = None

    def __post_init__(self) -> None:
        if self.dedicated is not None and self.dedicated > self.cpus:
            raise ValueError(
                f'expected at most {self.cpus} dedicated CPUs, as the cell '
                f'has, got {self.dedicated}'
            )


class GuestNuma(Document):
    """The NUMA topology of an instance.

    :ivar pinned: whether it has CPUs that are dedicated to it
    :ivar isolated_emulator: whether emulator threads get a CPU of their own
    :ivar page_size: small, large, any, a size in KiB as text, or empty
    :ivar physnets: physical networks that the instance is connected to
    :ivar tunneled: whether it is connected to a tunneled network
    """

    cells: Annotated[
        list[GuestNumaCell],
        msgspec.Meta(min_length=1, max_length=MAX_NUMA_CELLS),
    ]
    pinned: bool = False
    thread_policy: ThreadPolicy = ''
    isolated_emulator: bool = False
    page_size: PageSize = ''
    physnets: list[Short] = []
    tunneled: bool = False


class ResourceGroup(Document):
    """Resources that a single provider of a host's tree has to have.

    :ivar suffix: names the group, as in a query of the placement service
    :ivar aggregates: uuids, each entry one or several with commas between
        them; the provider has to be in one aggregate of each entry
    :ivar in_tree: uuid of a provider whose tree it has to be in; None: that
        of the host
    """

    suffix: Annotated[str, msgspec.Meta(pattern=r'^[a-zA-Z0-9_-]{1,64}\Z')]
    resources: dict[ResourceClass, Count] = {}
    required: list[Trait] = []
    forbidden: list[Trait] = []
    aggregates: list[Short] = []
    forbidden_aggregates: list[Short] = []
    in_tree: Short | None = None
