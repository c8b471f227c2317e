"""Request documents: instances and zones to schedule."""

from __future__ import annotations

import copy
import hashlib
import operator
import uuid
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
from scheduler_service.model.limits import Name, Short
from scheduler_service.model.request_parts import (
    MAX_GROUPS,
    Destination,
    Flavor,
    GuestNuma,
    Image,
    PciRequest,
    ResourceGroup,
    Retry,
)
from scheduler_service.model.requirements import (
    amounts,
    devices,
    features,
    numa,
)
from scheduler_service.model.requirements.amounts import Asked
from scheduler_service.model.requirements.devices import DeviceRequest
from scheduler_service.model.requirements.features import Features
from scheduler_service.model.requirements.numa import GuestTopology
from scheduler_service.model.requirements.specs import (
    Specs,
    property_path,
    spec_path,
)
from scheduler_service.settings import Settings

T = TypeVar('T')
MAX_INSTANCES = 1000
# Classes that only a host's own provider has, or a provider that hosts share.
HOST_CLASSES = frozenset(('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB'))
_NO_TRAITS: frozenset[str] = frozenset()
_HYPERTHREADS = 'HW_CPU_HYPERTHREADING'
_THREADS = {'isolate': 'forbidden', 'require': 'required'}
_PLACING, _STORED_GROUPS = 'placing now', 'stored groups'
_WHY_IGNORED = 'why ignored'
# By which the compute service says what is only to be checked.
_CHECK_TYPE = '_nova_check_type'
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


class Request(Document, dict=True):
    """How many instances of which flavor, and on which hosts they may be.

    :ivar ignore_nodes: (service host, node) pairs
    :ivar lenient: as in the compute service, what means nothing is left out,
        and a zone that no aggregate has restricts nothing
    :ivar boot_from_volume: its root disk is a volume, so that the host needs
        none for it
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
    lenient: bool = False
    boot_from_volume: bool = False
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
            if suffix not in counts and suffix not in self._asked.groups:
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
        # No other cached property depends on ids.
        copied.__dict__.update(self.__dict__)
        copied.__dict__.pop('text', None)
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

    @cached_property
    def text(self) -> bytes:
        """The whole request, as JSON, as it is kept with its decision."""
        return _encode(self)

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
    def specs(self) -> Specs:
        """The flavor's extra specs with the image's properties."""
        return Specs(self.flavor.extra_specs, self.image_properties)

    @cached_property
    def _asked(self) -> Asked:
        return amounts.asked(self.specs)

    @cached_property
    def _features(self) -> Features:
        return features.features(self.specs)

    @cached_property
    def guest(self) -> GuestTopology | None:
        """The NUMA topology of an instance; None: it needs none.

        :raises InvalidRequest: flavor and image do not describe any
        """
        if self.numa_topology is not None:
            return numa.explicit(self.numa_topology)
        return numa.derived(self.specs, self.flavor)

    @cached_property
    def provider_groups(self) -> list[ResourceGroup]:
        """What single providers have to have: by the request and its flavor.

        Amounts of 0 are left out, and groups that ask for nothing else.

        :raises InvalidRequest: two groups have the same suffix
        """
        groups = []
        for group in self._stated_groups:
            amounts = {name: n for name, n in group.resources.items() if n}
            made = msgspec.structs.replace(group, resources=amounts)
            if made != ResourceGroup(suffix=group.suffix):
                groups.append(made)
        return groups

    @cached_property
    def _stated_groups(self) -> list[ResourceGroup]:
        named = self._asked.groups
        for group in self.resource_groups:
            if group.suffix in named:
                raise errors.InvalidRequest.at(
                    'resource_groups',
                    'expected other suffixes than those of the flavor, got '
                    f'{group.suffix}',
                )
        if not named:
            return self.resource_groups
        return [*map(named.__getitem__, sorted(named)), *self.resource_groups]

    def refuse_groups(self) -> None:
        """Refuse groups of resources, which only placement can claim.

        :raises InvalidRequest: there is a group; it says where
        """
        if not self.provider_groups:
            return
        suffix = self.provider_groups[0].suffix
        scopes = f'resources{suffix}:', f'trait{suffix}:'
        place = 'requested_resources' if self.lenient else 'resource_groups'
        for key in self.flavor.extra_specs:
            if key.startswith(scopes):
                place = spec_path(key)
                break
        raise errors.InvalidRequest.at(
            place,
            f'group {suffix} can only be claimed in the placement service '
            '([compute] use_placement)',
            unsupported=place,
        )

    @property
    def policy_of_groups(self) -> str:
        """The policy of groups: none, isolate, or not stated."""
        return self.group_policy or self._asked.policy

    def check(self) -> None:
        """Check that every extra spec and property means something.

        :raises InvalidRequest: with the first one that does not; or no group
            has the resources of a device profile
        """
        key = _encode((_read_fields(self), self.image_properties))
        earlier = _read_before.get(key)
        if earlier is not None:
            self.__dict__.update(earlier)
            return
        extra = self.flavor.extra_specs
        self.specs = Specs(extra, self.image_properties, strict=True)
        _read(self)
        features.device_traits(self.specs)
        name = 'accel:device_profile'
        if self.flavor.extra_specs.get(name) and not self.resource_groups:
            raise errors.InvalidRequest.at(
                spec_path(name),
                'expected the resources of the profile in resource_groups, '
                'too',
            )
        if len(key) <= _LONGEST_READ:
            if len(_read_before) >= _MOST_READ:
                _read_before.clear()
            _read_before[key] = {**self.__dict__}

    def devices(self, settings: Settings) -> tuple[DeviceRequest, ...]:
        """Return the PCI devices of an instance.

        ``pci_requests``, or else the devices of the aliases that the flavor
        names.

        :raises InvalidRequest: an alias is not configured, or a count is no
            number
        """
        if self.pci_requests:
            return devices.stated(self.pci_requests)
        return devices.of_aliases(self.specs, settings.pci_aliases)

    @property
    def place_of_devices(self) -> str | None:
        """Where PCI devices are asked for, in no group; None: none are."""
        for each in self.pci_requests:
            if each.groups is None:
                return 'pci_requests'
        if self.flavor.extra_specs.get(devices.ALIAS_SPEC):
            return spec_path(devices.ALIAS_SPEC)
        return None

    @cached_property
    def disk_mb(self) -> int:
        """The disk of an instance, in MB: swap counts as it is."""
        stated = self.amounts is not None or 'DISK_GB' in self._asked.amounts
        if stated or any(
            'DISK_GB' in each.resources for each in self._stated_groups
        ):
            return 1024 * self.resources.get('DISK_GB', 0)
        return amounts.disk_mb(self.flavor, self.boot_from_volume)

    @cached_property
    def resources(self) -> dict[str, int]:
        """Amount of each resource class that one instance allocates.

        The resources of groups count as well.
        """
        if not self.provider_groups:
            return self.own_resources
        total = Counter(self.own_resources)
        for group in self.provider_groups:
            total.update(group.resources)
        return dict(sorted(total.items()))

    @cached_property
    def own_resources(self) -> dict[str, int]:
        """Amount of each resource class, without those of groups.

        VCPU, PCPU, MEMORY_MB and DISK_GB (swap rounded up to a GB) of the
        flavor, each overridden by the extra spec ``resources:CLASS``, and
        what its features need; or what the request has in ``amounts``.
        Classes with an amount of 0 are left out.

        :raises InvalidRequest: an extra spec or a property means nothing
        """
        if self.amounts is not None:
            return {name: n for name, n in self.amounts.items() if n}
        own = amounts.of_instance(
            self.flavor,
            self._asked.amounts,
            {
                name
                for group in self._stated_groups
                for name in group.resources
            },
            self.guest,
            self.boot_from_volume,
        )
        own.update(self._features.resources)
        return own

    @cached_property
    def _pins(self) -> bool:
        """Whether dedicated CPUs follow from a policy, and count as PCPU."""
        return (
            self.amounts is None
            and self.guest is not None
            and self.guest.dedicated > 0
        )

    def without_pcpu(self, only_dedicated: bool = False) -> Request | None:
        """Return the same request with dedicated CPUs as VCPU.

        :param only_dedicated: an instance with shared CPUs, too, has no such
            form
        :return: None: there is no difference, or no such form
        """
        own, guest = self.own_resources, self.guest
        if (
            not self._pins
            or 'PCPU' not in own
            or 'PCPU' in self._asked.amounts
            or (only_dedicated and guest and guest.shared)
        ):
            return None
        shared = {**own, 'VCPU': self.flavor.vcpus}
        del shared['PCPU']
        return self.having(amounts=shared)

    def offered_form(self, offered: Container[str]) -> Request:
        """Return the request in the form that some hosts may satisfy.

        :param offered: resource classes that some host offers
        """
        if 'PCPU' in offered or 'PCPU' not in self.own_resources:
            return self
        return self.without_pcpu() or self

    def forms(self, offered: Container[str]) -> Iterator[Request]:
        """Yield the forms in which hosts are selected, one after the other.

        The next one where no host is found.

        :param offered: resource classes that some host offers
        """
        first = self.offered_form(offered)
        yield first
        other = first.without_pcpu(only_dedicated=True)
        if other is not None:
            yield other

    @cached_property
    def _threads(self) -> str | None:
        """Whether dedicated CPUs require or forbid hyperthreads."""
        if not self._pins or not (
            self.numa_topology or any(self.specs.both('cpu_thread_policy'))
        ):
            return None
        cells = self.guest.cells if self.guest else ()
        policies = {cell.thread_policy for cell in cells if cell.dedicated}
        return next(
            (_THREADS[each] for each in _THREADS if each in policies), None
        )

    @cached_property
    def required_traits(self) -> frozenset[str]:
        """Traits that flavor, image or request require of the host."""
        return self._traits[0] | self.root_required

    @cached_property
    def forbidden_traits(self) -> frozenset[str]:
        """Traits that the host must not have, by flavor or request."""
        return self._traits[1] | _traits_of(self.root_traits, 'forbidden')

    @cached_property
    def root_required(self) -> frozenset[str]:
        """Traits that the host's own provider has to have."""
        return (
            _traits_of(self.root_traits, 'required')
            | self._features.root_traits
        )

    @property
    def known_traits(self) -> frozenset[str]:
        """Traits of the host's own provider, once some host reports any.

        Any of their family, which ends at the last underscore of the name.
        """
        return self._features.known_traits

    @cached_property
    def _traits(self) -> tuple[frozenset[str], frozenset[str]]:
        """Required and forbidden traits in no group.

        Those of the root alone are not among them.
        """
        asked, threads = self._asked.traits, self._threads
        required = _traits_of(asked, 'required') | self._features.traits
        forbidden = _traits_of(asked, 'forbidden')
        if self.traits:
            required |= _traits_of(self.traits, 'required')
            forbidden |= _traits_of(self.traits, 'forbidden')
        if threads == 'required':
            required |= {_HYPERTHREADS}
        elif threads:
            forbidden |= {_HYPERTHREADS}
        for name, value in self.image_properties.items():
            if name.startswith('trait:'):
                if value == 'required':
                    required |= {name[6:]} - {''}
                else:
                    self.specs.wrong(property_path(name), 'required', value)
        return required, forbidden

    @cached_property
    def tree_traits(self) -> tuple[frozenset[str], frozenset[str]]:
        """Required and forbidden traits that another provider may have.

        These are traits of no group, where a resource class may come from a
        provider below the host's own: each provider of the instance counts.
        """
        if self.own_resources.keys() <= HOST_CLASSES:
            return frozenset(), frozenset()
        return (
            self.required_traits - self.root_required,
            self.forbidden_traits - _traits_of(self.root_traits, 'forbidden'),
        )

    @cached_property
    def requested_traits(self) -> frozenset[str]:
        """Traits that flavor, image or a group require, of any provider."""
        required, _ = self._traits
        for group in self.provider_groups:
            required = required.union(group.required)
        return required

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
    def hinted_instances(self) -> list[str]:
        """Instances with which, or apart from which, it is to be placed."""
        if not self.scheduler_hints:
            return []
        names = 'same_host', 'different_host'
        hints = [self.scheduler_hints.get(name) for name in names]
        lists = (hint if isinstance(hint, list) else [hint] for hint in hints)
        return [
            uuid for uuids in lists for uuid in uuids if isinstance(uuid, str)
        ]

    @property
    def named_places(self) -> tuple[list[str], list[str]]:
        """Service hosts and nodes that are forced or required."""
        target = self.requested_destination
        hosts = [target.host if target else None, *(self.force_hosts or ())]
        nodes = [target.node if target else None, *(self.force_nodes or ())]
        return [*filter(None, hosts)], [*filter(None, nodes)]

    @property
    def is_rebuild(self) -> bool:
        """Whether the request only checks a rebuild on the same host.

        Faces take in no such request of which they do not know that.
        """
        kind = self.scheduler_hints.get(_CHECK_TYPE)
        return kind in ('rebuild', ['rebuild'])

    def deny_rebuild(self) -> None:
        """Have the request judged as any other; before it is submitted."""
        del self.scheduler_hints[_CHECK_TYPE]

    def refuse_internal_hints(self) -> None:
        """Refuse hints that only a compute service may give.

        :raises InvalidRequest: there is one; it says where
        """
        for name in self.scheduler_hints:
            if name.startswith('_nova_'):
                raise errors.InvalidRequest.at(
                    f'scheduler_hints.{name}',
                    'only the compute service may say so, over the interface '
                    'that it calls',
                )


_encode = msgspec.json.Encoder().encode
_singular_fields = operator.attrgetter(
    'scheduler_hints', 'instance_group', 'retry', 'force_hosts',
    'force_nodes', 'ignore_hosts', 'ignore_nodes',
)  # fmt: skip
_read = operator.attrgetter(
    'guest', 'disk_mb', 'resources', 'forbidden_traits', 'tree_traits',
    'requested_traits', 'image_pairs',
)  # fmt: skip
# What is read of a request, as JSON -> what follows from it: few flavors come
# over and over, and to read them takes longer than to parse them. At most some
# megabytes.
_read_before: dict[bytes, dict[str, Any]] = {}
_MOST_READ, _LONGEST_READ = 2048, 4096
_read_fields = operator.attrgetter(
    'flavor', 'amounts', 'traits', 'root_traits', 'numa_topology',
    'resource_groups', 'group_policy', 'boot_from_volume', 'lenient',
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


class ExplainArguments(Document):
    """What ``explain`` is asked: a request, and a host that matters."""

    request: dict[str, Any]
    host: str | None = None


# An entry of schedule_many; an error stands for one that could not be parsed.
Entry = Request | ZoneRequest | errors.SchedulerError


def _traits_of(traits: Mapping[str, str], requirement: str) -> frozenset[str]:
    if not traits:
        return _NO_TRAITS
    return frozenset(name for name in traits if traits[name] == requirement)


def _new_uuid(key: str | None, name: object) -> str:
    """Return a random uuid, or the uuid of a name within a message."""
    if key is None:
        return str(uuid.uuid4())
    # As uuid.uuid5 does, in a third of the time.
    named = _MESSAGES.bytes + f'{key}/{name}'.encode()
    digits = hashlib.sha1(named, usedforsecurity=False).hexdigest()
    variant = '89ab'[int(digits[16], 16) & 3]
    return (
        f'{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-'
        f'{variant}{digits[17:20]}-{digits[20:32]}'
    )
