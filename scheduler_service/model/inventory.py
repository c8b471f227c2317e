"""The inventory document: hosts, pools, aggregates, instances, groups.

The fields are those of ``doc/source/reference/formats.rst``, with the
defaults of absent keys. ``documents`` parses it.

An :class:`AggregateMap` has all aggregates, and memoized lookups in them.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from scheduler_service.model.limits import (
    MAX_NUMBER,
    MAX_RATIO,
    Address,
    Name,
    Short,
    Text,
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Unit = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATIO)]
Uuid = Annotated[
    str,
    msgspec.Meta(
        pattern=r'^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?'
        r'[0-9a-fA-F]{12}\Z'
    ),
]
ResourceClass = Annotated[str, msgspec.Meta(pattern=r'^[A-Z0-9_]{1,255}\Z')]
Trait = Annotated[str, msgspec.Meta(pattern=r'^[A-Z0-9_]{1,255}\Z')]
Scalar = str | int | float | bool | None

StandardClass = Annotated[
    str, msgspec.Meta(pattern=r'^(VCPU|MEMORY_MB|DISK_GB)\Z')
]
STANDARD_CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
# Fields of a host's document by standard class: total, used, ratio.
STANDARD_FIELDS = {
    'VCPU': ('vcpus', 'vcpus_used', 'cpu_allocation_ratio'),
    'MEMORY_MB': ('memory_mb', 'memory_mb_used', 'ram_allocation_ratio'),
    'DISK_GB': ('local_gb', 'local_gb_used', 'disk_allocation_ratio'),
}
_NAMESPACE = uuid.UUID('6ecb0a3e-0f0c-5bb5-9e3f-3a9a5cf1ad35')
T = TypeVar('T')
# How many results of lookups are kept; the oldest are dropped.
_MOST_KEPT = 512
# Results under longer keys, in characters, are not kept: a request may name
# any number of aggregates.
_LONGEST_KEPT = 4096
_CLASS = re.compile(r'[A-Z0-9_]{1,255}')
# Kubernetes' own resources have names without a domain, or with a domain of
# its own; resources of quotas are not those of nodes.
_OWN_DOMAIN = 'kubernetes.io/'
_QUOTA = 'requests.'
_LONGEST_CLASS = 255


def dashed(value: str) -> str:
    """Return a uuid in lower case with dashes; other text unchanged."""
    if len(value) == 36 and value == value.lower():
        # Either it has this form already, or it is not a uuid.
        return value
    try:
        return str(uuid.UUID(value))
    except ValueError:
        return value


class Document(
    msgspec.Struct,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
):
    """Base of all parsed documents: unknown keys are errors."""


class Attributes(dict[str, str]):
    """Attributes of a pool or zone: a dict with ``to_dict``.

    Pool filters of a DNS service call that method.
    """

    def to_dict(self) -> dict[str, str]:
        """Return a copy as a plain dict."""
        return dict(self)


class Pool(Document):
    """A DNS pool."""

    id: Uuid
    name: Name
    description: Text | None = ''
    attributes: dict[Name, Text] = {}

    def __post_init__(self) -> None:
        self.attributes = Attributes(self.attributes)


class Resource(Document):
    """Inventory of a resource class other than the three standard classes."""

    total: Count
    used: Count = 0
    reserved: Count = 0
    min_unit: Unit = 1
    max_unit: Unit | None = None
    step_size: Unit = 1
    allocation_ratio: Ratio = 1.0


class UnitLimits(Document):
    """Limits of the amount that an instance takes of a standard class."""

    min_unit: Unit = 1
    max_unit: Unit | None = None
    step_size: Unit = 1


class Metric(Document):
    """A metric that a host reports."""

    name: str
    value: float | None = None
    source: str | None = None
    timestamp: str | None = None


class HostColumn(enum.Enum):
    """How a field of a host's document is stored, and its column.

    A field of :class:`Host` that is annotated with a member is an attribute:
    the store and the host table need no other mention of it. The remaining
    fields have code of their own: names, capacity and use, traits, and the
    number of instances.

    :cvar ENCODED: a column of the table ``hosts``; dictionary-encoded
    :cvar COUNT: a column of the table ``hosts``; int64
    :cvar FLAG: a column of the table ``hosts`` with one of two words; bool,
        named after the default, true for hosts that have it
    :cvar JSON: a part of ``hosts.document``; JSON text, dictionary-encoded
    """

    ENCODED = 'encoded'
    COUNT = 'count'
    FLAG = 'flag'
    JSON = 'json'


class Host(Document):
    """A compute host, or one node of it.

    :class:`HostColumn` says what an annotated field becomes.
    """

    host: Name
    hypervisor_hostname: Name = ''
    uuid: Uuid = ''
    status: Annotated[Literal['enabled', 'disabled'], HostColumn.FLAG] = (
        'enabled'
    )
    disabled_reason: Annotated[Text | None, HostColumn.ENCODED] = None
    state: Annotated[Literal['up', 'down'], HostColumn.FLAG] = 'up'
    vcpus: Count = 0
    memory_mb: Count = 0
    local_gb: Count = 0
    vcpus_used: Count = 0
    memory_mb_used: Count = 0
    local_gb_used: Count = 0
    disk_available_least: Whole | None = None
    cpu_allocation_ratio: Ratio | None = None
    ram_allocation_ratio: Ratio | None = None
    disk_allocation_ratio: Ratio | None = None
    hypervisor_type: Annotated[Short | None, HostColumn.ENCODED] = None
    hypervisor_version: Annotated[Whole | None, HostColumn.ENCODED] = None
    host_ip: Annotated[Address | None, HostColumn.ENCODED] = None
    supported_instances: Annotated[
        list[list[str | None]] | None, HostColumn.JSON
    ] = []
    cpu_info: Annotated[dict[str, Any] | str | None, HostColumn.JSON] = {}
    stats: Annotated[dict[str, Scalar] | None, HostColumn.JSON] = {}
    metrics: Annotated[list[Metric] | None, HostColumn.JSON] = []
    num_io_ops: Annotated[Count, HostColumn.COUNT] = 0
    failed_builds: Annotated[Count, HostColumn.COUNT] = 0
    num_instances: Count | None = None
    traits: list[Trait] = []
    child_traits: Annotated[list[Trait], HostColumn.JSON] = []
    resources: dict[ResourceClass, Resource] = {}
    units: dict[StandardClass, UnitLimits] = {}
    pci_device_pools: Annotated[
        list[dict[str, Any]] | None, HostColumn.JSON
    ] = []
    numa_topology: Annotated[dict[str, Any] | None, HostColumn.JSON] = None
    cell_uuid: Annotated[Short | None, HostColumn.ENCODED] = None

    def __post_init__(self) -> None:
        if not self.hypervisor_hostname:
            self.hypervisor_hostname = self.host
        if not self.uuid:
            self.uuid = str(
                uuid.uuid5(
                    _NAMESPACE, f'{self.host}\0{self.hypervisor_hostname}'
                )
            )


# The attributes: the field of the document, and its column.
HOST_ATTRIBUTES = tuple(
    (field, column)
    for field in msgspec.structs.fields(Host)
    for column in getattr(field.type, '__metadata__', ())
    if isinstance(column, HostColumn)
)


def _names(column: HostColumn) -> tuple[str, ...]:
    return tuple(f.name for f, of in HOST_ATTRIBUTES if of is column)


ENCODED_FIELDS = _names(HostColumn.ENCODED)
COUNT_FIELDS = _names(HostColumn.COUNT)
NESTED_FIELDS = _names(HostColumn.JSON)
# Field -> the word that makes the flag true, which is the flag's name, too.
FLAG_FIELDS: dict[str, str] = {
    field.name: field.default
    for field, column in HOST_ATTRIBUTES
    if column is HostColumn.FLAG
}


class ReportedHost(Host):
    """The document that a host reports about itself.

    :ivar instances: uuids of the instances that its used amounts include;
        None: of those with confirmed claims
    """

    instances: list[Uuid] | None = None


class HostReport(NamedTuple):
    """A host report; fields that it does not name do not change.

    :ivar changes: field of the host's document -> value
    :ivar instances: uuids, as in :class:`ReportedHost`
    :ivar counted: uuids of more instances whose claims the used amounts
        include; the report does not confirm them
    """

    host: str
    node: str
    changes: dict[str, Any]
    instances: list[str] | None = None
    counted: list[str] | None = None

    @classmethod
    def of(cls, host: ReportedHost, named: Iterable[str]) -> HostReport:
        """Return a report of the fields that a document names."""
        fields = {*Host.__struct_fields__} - {'host', 'hypervisor_hostname'}
        changes = {name: getattr(host, name) for name in fields & {*named}}
        return cls(
            host.host,
            host.hypervisor_hostname,
            changes,
            None
            if host.instances is None
            else [dashed(uuid) for uuid in host.instances],
        )

    def over(self, older: HostReport | None) -> HostReport:
        """Return an older report of the same host, updated by this report."""
        if older is None:
            return self
        return self._replace(changes={**older.changes, **self.changes})

    def as_host(self) -> Host:
        """Return a host with the reported fields, and defaults elsewhere."""
        return Host(
            host=self.host, hypervisor_hostname=self.node, **self.changes
        )


def provider_of(number: int) -> int:
    """Return what claims know an aggregate by, of its id, and back again.

    They know hosts by their ids in the store, of which none is below 0.
    """
    return -1 - number


class Aggregate(Document):
    """A host aggregate: service hosts with metadata, such as their zone.

    ``resources`` are offered once for all of its hosts.
    """

    id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    uuid: Uuid = ''
    name: Name = ''
    hosts: list[Name] = []
    metadata: dict[Name, Text] = {}
    resources: dict[ResourceClass, Resource] = {}

    def __post_init__(self) -> None:
        if not self.uuid:
            self.uuid = str(uuid.uuid5(_NAMESPACE, f'aggregate\0{self.id}'))
        if not self.name:
            self.name = f'aggregate-{self.id}'

    @property
    def zones(self) -> list[str]:
        """Names of the availability zones, split at commas, sorted."""
        text = self.metadata.get('availability_zone', '')
        return sorted({part.strip() for part in text.split(',')} - {''})


class Instance(Document):
    """An instance that runs on a host, or has a claim there."""

    uuid: Uuid
    host: Name
    hypervisor_hostname: Name = ''
    project_id: Short | None = None
    image_id: str | None = None
    availability_zone: str | None = None
    task_state: str | None = None
    image_meta: dict[str, Any] = {}
    flavor: dict[str, Any] = {}

    def __post_init__(self) -> None:
        self.uuid = dashed(self.uuid)
        if not self.hypervisor_hostname:
            self.hypervisor_hostname = self.host


class ServerGroup(Document):
    """A server group: instances that go together, or apart."""

    uuid: Uuid
    name: Name = ''
    project_id: Short | None = None
    policy: Literal[
        'affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity'
    ] = 'anti-affinity'
    rules: dict[
        Literal['max_server_per_host'],
        Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)],
    ] = {}
    members: list[Uuid] = []

    def __post_init__(self) -> None:
        if not self.name:
            self.name = self.uuid

    @property
    def max_server_per_host(self) -> int:
        """How many members may be on a host with the policy anti-affinity."""
        return self.rules.get('max_server_per_host', 1)


class Inventory(Document):
    """A whole inventory document."""

    pools: list[Pool] = []
    hosts: list[Host] = []
    aggregates: list[Aggregate] = []
    instances: list[Instance] = []
    server_groups: list[ServerGroup] = []


# The parts of hosts and instances that filters and weighers read. These types
# only check: a part is kept as it was sent, with keys that are not named here.


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

    size_kb: Unit
    total: Count
    used: Count | None = None
    reserved: Count | None = None


class NumaCell(msgspec.Struct):
    """One NUMA cell of a host; memory in MB."""

    cpuset: list[Count] | None = None
    pcpuset: list[Count] | None = None
    pinned_cpus: list[Count] | None = None
    siblings: list[list[Count]] | None = None
    cpu_usage: Annotated[float, msgspec.Meta(ge=0, le=MAX_NUMBER)] | None = (
        None
    )
    memory: Count | None = None
    memory_usage: Count | None = None
    mempages: list[MemoryPages] | None = None


class NumaTopology(msgspec.Struct):
    """The NUMA cells of a host."""

    cells: list[NumaCell] | None = None
    cpu_allocation_ratio: Ratio | None = None
    ram_allocation_ratio: Ratio | None = None


class MetricValue(msgspec.Struct):
    """The numeric part of a metric."""

    value: (
        Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] | None
    ) = None


class ImageMeta(msgspec.Struct):
    """The part of an instance's image that filters look at."""

    properties: dict[str, Any] | None = None


#: Field of a host or an instance -> the type that it has to have.
NESTED_TYPES: dict[str, Any] = {
    'pci_device_pools': list[PciPool],
    'numa_topology': NumaTopology,
    'metrics': list[MetricValue],
    'image_meta': ImageMeta,
}


class SharedUuids(frozenset[str]):
    """Uuids of aggregates that are kept once, for all requests.

    In a key they take no memory of their own, so their text is short: keys
    are weighed by their texts.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f'<{len(self)} uuids>'


class AggregateMap(dict[int, Aggregate]):
    """Aggregates by id, which do not change.

    Any thread may read it. Two threads that miss a key at once both compute
    the result.
    """

    __slots__ = ('_memo',)

    def __init__(self, aggregates: Any = ()) -> None:
        super().__init__(aggregates)
        self._memo: dict[Hashable, Any] = {}

    def memoize(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the result of *work*, which is kept under *key*."""
        try:
            value: T = self._memo[key]
            return value
        except KeyError:
            pass
        value = work()
        if len(repr(key)) > _LONGEST_KEPT:
            return value
        while len(self._memo) >= _MOST_KEPT:
            self._memo.pop(next(iter(self._memo), None), None)
        self._memo[key] = value
        return value


def class_of(name: str, domain: str) -> str | None:
    """Return the resource class of a resource; None: it is not extended.

    ``DOMAIN/CLASS`` is the class itself, except for a standard class, for
    which Kubernetes has names of its own. Any other ``example.com/fpga`` is
    ``CUSTOM_EXAMPLE_COM_FPGA``.

    :param domain: of the resources that are ours
    """
    prefix, slash, short = name.partition('/')
    if not slash or _OWN_DOMAIN in name or name.startswith(_QUOTA):
        return None
    if (
        prefix == domain
        and short not in STANDARD_CLASSES
        and _CLASS.fullmatch(short)
    ):
        return short
    made = re.sub(r'[^A-Z0-9]', '_', name.upper())
    return f'CUSTOM_{made}'[:_LONGEST_CLASS]
