"""The parts of documents that hosts report as nested values.

These types only check: a part is kept as it was sent, with keys that are not
named here.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from scheduler_service.model.inventory import Count, Ratio, Scalar
from scheduler_service.model.limits import MAX_NUMBER

_Number = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
_Usage = Annotated[float, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_PageSize = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class PciPool(msgspec.Struct):
    """Devices of one kind."""

    count: Count | None = None
    vendor_id: str | None = None
    product_id: str | None = None
    numa_node: int | None = None
    dev_type: str | None = None
    remote_managed: Scalar = None
    tags: dict[str, Scalar] | None = None


class MemoryPages(msgspec.Struct):
    """Pages of one size of a NUMA cell."""

    size_kb: _PageSize
    total: Count
    used: Count | None = None


class NumaCell(msgspec.Struct):
    """One NUMA cell of a host; memory in MB."""

    cpuset: list[Count] | None = None
    pcpuset: list[Count] | None = None
    pinned_cpus: list[Count] | None = None
    siblings: list[list[Count]] | None = None
    cpu_usage: _Usage | None = None
    memory: Count | None = None
    memory_usage: Count | None = None
    mempages: list[MemoryPages] | None = None


class NumaTopology(msgspec.Struct):
    """The NUMA cells of a host."""

    cells: list[NumaCell] | None = None
    cpu_allocation_ratio: Ratio | None = None
    ram_allocation_ratio: Ratio | None = None


class MetricValue(msgspec.Struct):
    """The part of a metric that is calculated with."""

    value: _Number | None = None


class ImageMeta(msgspec.Struct):
    """The part of an instance's image that filters look at."""

    properties: dict[str, Any] | None = None


#: Field of a host's document -> the type that it has to have.
OF_HOST: dict[str, Any] = {
    'pci_device_pools': list[PciPool],
    'numa_topology': NumaTopology,
    'metrics': list[MetricValue],
}
#: Field of an instance's document -> the type that it has to have.
OF_INSTANCE: dict[str, Any] = {'image_meta': ImageMeta}
