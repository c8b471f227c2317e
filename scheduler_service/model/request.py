"""Request documents: instances and zones to schedule."""

from __future__ import annotations

import copy
import operator
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from scheduler_service import errors
from scheduler_service.model.inventory import (
    Attributes,
    Count,
    Document,
    Pool,
    ResourceClass,
    Trait,
    Uuid,
    dashed,
)
from scheduler_service.model.limits import (
    MAX_NUMA_CELLS,
    Name,
    Short,
)

T = TypeVar('T')
MAX_INSTANCES = 1000
# Extra specs of a flavor, and properties of an image. Some filters look at
# all hosts for each of them, and all other requests wait meanwhile.
MAX_SETTINGS = 512
MAX_GROUPS = 64
MAX_DEVICES = 4096
MAX_CPUS = 4096
MAX_PAGE_KB = 10**15 - 1
_PAGE_SIZE = r'^(|small|large|any|[0-9]{1,15})\Z'
_DIGITS = re.compile('[0-9]+')
# Classes that only a host's own provider has, or a provider that hosts share.
HOST_CLASSES = frozenset(('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB'))
# Stands for all amounts of more than 15 digits: no host has as much.
_TOO_MUCH = 10**15
_PLACING, _STORED_GROUPS = 'placing now', 'stored groups'
_WHY_IGNORED = 'why ignored'
_MESSAGES = uuid.UUID('6f0d7e1b-5a83-5d0f-9c52-2f6f3ad1c7e4')
_ZONES = uuid.UUID('0bb45a0c-28a5-5c3d-8d26-64b0f1cf3a10')


class cached_property(Generic[T]):
    """Like ``functools.cached_property``, but without its lock.

    A request belongs to one thread at a time.
    """

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work = work
        self._name = work.__name__
        self.__doc__ = work.__doc__

    def __get__(self, owner: Any, kind: Any = None) -> T:
        value = owner.__dict__[self._name] = self._work(owner)
        return value


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


class Request(Document, dict=True):
    """How many instances of which flavor, and on which hosts they may be.

    :ivar ignore_nodes: (service host, node) pairs
    :ivar amounts: resource class -> what one instance takes, in place of
        what follows from the flavor; None: what follows from it
    :ivar traits: in addition to the traits of flavor and image
    :ivar root_traits: of the host's own provider, whatever providers below it
        have
    :ivar group_hosts: service hosts of members of the server group by the
        caller, in addition to those of stored members
    :ivar numa_topology: in place of what follows from flavor and image
    :ivar pci_requests: devices, in place of what the flavor's alias names
    :ivar resource_groups: what single providers of the host's tree have to
        have, beside all else
    :ivar group_policy: isolate: no two groups may have the same provider
    :ivar same_subtree: groups whose providers are to be in one subtree

    ``dict=True`` gives the cached properties below a place for their values,
    which many filters read.
    """

    request_id: Short | None = None
    project_id: Short | None = None
    user_id: str | None = None
    num_instances: Annotated[int, msgspec.Meta(ge=1, le=MAX_INSTANCES)] = 1
    instance_uuids: Annotated[
        list[Uuid], msgspec.Meta(max_length=MAX_INSTANCES)
    ] = []
    flavor: Flavor = msgspec.field(default_factory=Flavor)
    image: Image | None = None
    availability_zone: str | None = None
    scheduler_hints: dict[str, Any] = {}
    instance_group: str | None = None
    ignore_hosts: list[str] | None = []
    force_hosts: list[str] | None = []
    force_nodes: list[str] | None = []
    retry: Retry | None = None
    requested_destination: Destination | None = None
    ignore_nodes: list[tuple[str, str]] = []
    amounts: dict[ResourceClass, Count] | None = None
    traits: dict[Trait, Literal['required', 'forbidden']] = {}
    root_traits: dict[Trait, Literal['required', 'forbidden']] = {}
    group_hosts: list[str] = []
    numa_topology: GuestNuma | None = None
    pci_requests: list[PciRequest] = []
    resource_groups: Annotated[
        list[ResourceGroup], msgspec.Meta(max_length=MAX_GROUPS)
    ] = []
    group_policy: Literal['none', 'isolate'] | None = None
    same_subtree: list[list[Short]] = []

    def __post_init__(self) -> None:
        uuids = list(map(dashed, self.instance_uuids))
        if uuids:
            if len(set(uuids)) != len(uuids):
                raise ValueError('expected different instance_uuids')
            if self.num_instances not in (1, len(uuids)):
                raise ValueError(
                    f'expected {self.num_instances} instance_uuids, as '
                    f'num_instances says, got {len(uuids)}'
                )
            self.num_instances = len(uuids)
        self.instance_uuids = uuids
        if self.resource_groups or self.same_subtree:
            self._check_groups()
        if self.instance_group:
            self.instance_group = dashed(self.instance_group)

    def _check_groups(self) -> None:
        """Check that groups have different suffixes, and subtrees name them.

        :raises ValueError: with the suffix that does not
        """
        counts = Counter(group.suffix for group in self.resource_groups)
        for suffix, count in counts.items():
            if count > 1:
                raise ValueError(
                    f'expected different suffixes, got 2 x {suffix}'
                )
        for suffix in {name for names in self.same_subtree for name in names}:
            if suffix not in counts:
                raise ValueError(f'same_subtree: there is no group {suffix}')

    def with_ids(
        self, key: str | None = None, request_id: str | None = None
    ) -> Request:
        """Return the request with a uuid for each instance and an id.

        Absent ids become random ids. A caller whose retry has to find the
        claim of its first attempt sends its own ids.

        :param key: absent ids are derived from it, so that the same message
            has the same ids whenever it is delivered
        :param request_id: of the caller, for a request that has none
        """
        if self.instance_uuids and self.request_id:
            return self
        copied = copy.copy(self)
        # No cached property depends on ids.
        copied.__dict__.update(self.__dict__)
        copied.request_id = (
            self.request_id or request_id or f'req-{_new_uuid(key, "request")}'
        )
        copied.instance_uuids = self.instance_uuids or [
            _new_uuid(key, n) for n in range(self.num_instances)
        ]
        return copied

    @cached_property
    def shape(self) -> bytes | None:
        """The requirements of each instance, as JSON, without ids and caller.

        Most filters give all callers the same result.
        None where the request has hints, groups or an earlier attempt, or
        forces or ignores a host: such requests hardly ever repeat.
        """
        if self.stored_groups or any(_singular_fields(self)):
            return None
        image = self.image
        about_image = image and (image.properties, image.disk_format)
        return _encode((_shape_fields(self), about_image))

    @property
    def placing(self) -> str | None:
        """The instance that is being placed; the first by default.

        The pipeline sets it for each instance in turn.
        """
        uuids = self.instance_uuids
        placing: str | None = self.__dict__.get(_PLACING)
        return placing or (uuids[0] if uuids else None)

    @placing.setter
    def placing(self, uuid: str) -> None:
        self.__dict__[_PLACING] = uuid

    @property
    def why_ignored(self) -> Mapping[str, str]:
        """Service hosts in lower case -> why they are ignored.

        Those that the caller did not choose to ignore; the engine sets it.
        """
        reasons: Mapping[str, str] = self.__dict__.get(_WHY_IGNORED, {})
        return reasons

    @why_ignored.setter
    def why_ignored(self, reasons: Mapping[str, str]) -> None:
        self.__dict__[_WHY_IGNORED] = reasons

    @property
    def stored_groups(self) -> Mapping[str, Sequence[str]]:
        """Server groups by instance, of instances that are stored in some.

        The engine sets it. :meth:`having` keeps it.
        """
        stored: Mapping[str, Sequence[str]] = self.__dict__.get(
            _STORED_GROUPS, {}
        )
        return stored

    @stored_groups.setter
    def stored_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        self.__dict__[_STORED_GROUPS] = groups
        self.__dict__.pop('shape', None)

    @property
    def groups(self) -> Sequence[str]:
        """Server groups that the instance that is being placed is to be in."""
        named = [self.instance_group] if self.instance_group else []
        if not self.stored_groups:
            return named
        stored = self.stored_groups.get(self.placing or '', ())
        return [*dict.fromkeys([*named, *stored])]

    def hosts_named_for(self, group: str) -> Sequence[str]:
        """Return the service hosts of members of a group by the caller."""
        return self.group_hosts if group == self.instance_group else ()

    def having(self, **fields: Any) -> Request:
        """Return the request with other values of some fields."""
        changed = msgspec.structs.replace(self, **fields)
        changed.stored_groups = self.stored_groups
        return changed

    @property
    def image_properties(self) -> dict[str, Any]:
        """The image's properties, empty without an image."""
        return self.image.properties if self.image else {}

    @cached_property
    def image_pairs(self) -> frozenset[tuple[str, str]]:
        """The image's properties as (name, text) pairs."""
        if self.image is None:
            return frozenset()
        properties = self.image.properties
        return frozenset((key, str(v)) for key, v in properties.items())

    @cached_property
    def disk_mb(self) -> int:
        """Root and ephemeral disk and swap together, in MB."""
        flavor = self.flavor
        return 1024 * (flavor.root_gb + flavor.ephemeral_gb) + flavor.swap

    @cached_property
    def resources(self) -> dict[str, int]:
        """Amount of each resource class that one instance allocates.

        The resources of groups count as well.
        """
        if not self.resource_groups:
            return self.own_resources
        total = Counter(self.own_resources)
        for group in self.resource_groups:
            total.update(group.resources)
        return dict(sorted(total.items()))

    @cached_property
    def own_resources(self) -> dict[str, int]:
        """Amount of each resource class, without those of groups.

        VCPU, MEMORY_MB and DISK_GB (swap rounded up to a GB) of the flavor,
        each overridden by the extra spec ``resources:CLASS``; or what the
        request has in ``amounts``. Classes with an amount of 0 are left out.
        """
        if self.amounts is not None:
            return {name: n for name, n in self.amounts.items() if n}
        flavor = self.flavor
        swap_gb = -(-flavor.swap // 1024)
        amounts = {
            'VCPU': flavor.vcpus,
            'MEMORY_MB': flavor.memory_mb,
            'DISK_GB': flavor.root_gb + flavor.ephemeral_gb + swap_gb,
        }
        for key, value in flavor.extra_specs.items():
            scope, _, name = key.partition(':')
            if scope == 'resources' and name and _DIGITS.fullmatch(value):
                digits = value.lstrip('0') or '0'
                amounts[name] = int(digits) if len(digits) <= 15 else _TOO_MUCH
        return {name: amount for name, amount in amounts.items() if amount}

    @cached_property
    def required_traits(self) -> frozenset[str]:
        """Traits that flavor, image or request require of the host."""
        return (
            _traits(self.flavor.extra_specs, 'required')
            | _traits(self.image_properties, 'required')
            | _traits_of(self.traits, 'required')
            | _traits_of(self.root_traits, 'required')
        )

    @cached_property
    def forbidden_traits(self) -> frozenset[str]:
        """Traits that the host must not have, by flavor or request."""
        return (
            _traits(self.flavor.extra_specs, 'forbidden')
            | _traits_of(self.traits, 'forbidden')
            | _traits_of(self.root_traits, 'forbidden')
        )

    @cached_property
    def tree_traits(self) -> tuple[frozenset[str], frozenset[str]]:
        """Required and forbidden traits that another provider may have.

        These are traits of no group, where a resource class may come from a
        provider below the host's own: each provider of the instance counts.
        """
        if self.own_resources.keys() <= HOST_CLASSES:
            return frozenset(), frozenset()
        return (
            self.required_traits - _traits_of(self.root_traits, 'required'),
            self.forbidden_traits - _traits_of(self.root_traits, 'forbidden'),
        )

    @cached_property
    def ignored(self) -> frozenset[str]:
        """Service hosts to ignore, in lower case."""
        return frozenset(name.lower() for name in self.ignore_hosts or ())

    @property
    def forced(self) -> bool:
        """Whether hosts or nodes are forced, so that filters are skipped."""
        return bool(self.force_hosts or self.force_nodes)

    def hint(self, name: str) -> Any:
        """Return a scheduler hint; None if it is absent or empty.

        A list with a single value gives that value.
        """
        value = self.scheduler_hints.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return None if value in (None, '', []) else value

    @property
    def is_rebuild(self) -> bool:
        """Whether the request only checks a rebuild on the same host."""
        kind = self.scheduler_hints.get('_nova_check_type')
        return kind in ('rebuild', ['rebuild'])


_encode = msgspec.json.Encoder().encode
_singular_fields = operator.attrgetter(
    'scheduler_hints', 'instance_group', 'retry', 'force_hosts',
    'force_nodes', 'ignore_hosts', 'ignore_nodes',
)  # fmt: skip
_NOT_IN_SHAPE = frozenset(
    ('request_id', 'instance_uuids', 'num_instances', 'scheduler_hints',
     'project_id', 'user_id', 'image', 'ignore_hosts', 'ignore_nodes')
)  # fmt: skip
_shape_fields = operator.attrgetter(
    *(name for name in Request.__struct_fields__ if name not in _NOT_IN_SHAPE)
)


class ZoneRequest(Document):
    """A DNS zone for which a pool is to be selected.

    :ivar name: None: of a zone that is to be imported, and is not stored
    """

    name: Name | None = None
    id: Uuid | None = None
    email: str | None = None
    attributes: dict[str, str] = {}
    project_id: Short | None = None
    request_id: Short | None = None

    def __post_init__(self) -> None:
        self.attributes = Attributes(self.attributes)
        self.id = dashed(self.id) if self.id else None

    def with_ids(
        self, key: str | None = None, request_id: str | None = None
    ) -> ZoneRequest:
        """Return the zone with an id and a request id.

        An absent id is derived from project and name, so that a repeated
        request without an id is for the same zone. A zone without a name is
        the same as no other.

        :param key: an absent request id is derived from it
        :param request_id: of the caller, for a zone that has none
        """
        if self.id and self.request_id:
            return self
        copied = copy.copy(self)
        if not self.id and self.name is not None:
            name = f'{self.project_id or ""}\0{self.name}'
            copied.id = str(uuid.uuid5(_ZONES, name))
        elif not self.id:
            copied.id = _new_uuid(key, 'zone')
        copied.request_id = (
            self.request_id or request_id or f'req-{_new_uuid(key, "request")}'
        )
        return copied


class PoolCandidates(Document):
    """The pools that a caller sends with a zone."""

    pools: list[Pool]


# An entry of schedule_many; an error stands for one that could not be parsed.
Entry = Request | ZoneRequest | errors.SchedulerError


def _traits(specs: dict[str, Any], requirement: str) -> frozenset[str]:
    """Return X of every key ``trait:X`` with a value."""
    return frozenset(
        key[6:]
        for key, value in specs.items()
        if key.startswith('trait:') and value == requirement and len(key) > 6
    )


def _traits_of(
    traits: dict[str, Literal['required', 'forbidden']], requirement: str
) -> frozenset[str]:
    return frozenset(name for name in traits if traits[name] == requirement)


def _new_uuid(key: str | None, name: object) -> str:
    """Return a random uuid, or the uuid of a name within a message."""
    if key is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(_MESSAGES, f'{key}/{name}'))
