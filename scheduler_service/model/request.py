"""Request documents: instances and zones to schedule."""

from __future__ import annotations

import functools
import uuid
from typing import Annotated, Any, NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service.model.inventory import (
    Attributes,
    Count,
    Document,
    Name,
    Uuid,
    dashed,
)

MAX_INSTANCES = 1000
_NO_TRAITS: frozenset[str] = frozenset()
_PLACING = 'placing now'
_ZONES = uuid.UUID('0bb45a0c-28a5-5c3d-8d26-64b0f1cf3a10')


class Flavor(Document):
    """The flavor: size and extra specs of one instance."""

    flavorid: str | None = None
    name: str | None = None
    vcpus: Count = 0
    memory_mb: Count = 0
    root_gb: Count = 0
    ephemeral_gb: Count = 0
    swap: Count = 0
    extra_specs: dict[str, str] = {}


class Image(Document):
    """The image to boot: what matters for scheduling."""

    id: str | None = None
    properties: dict[str, Any] = {}
    disk_format: str | None = None


class Retry(Document):
    """Earlier attempts to build the same instance."""

    num_attempts: Count = 0
    hosts: list[tuple[str, str]] = []


class Destination(Document):
    """A host, node or cell that the caller requires."""

    host: str | None = None
    node: str | None = None
    cell: str | None = None
    allow_cross_cell_move: bool = False


class Request(Document, dict=True):
    """How many instances of which flavor, and on which hosts they may be.

    ``dict=True`` gives the cached properties below a place for their values,
    which many filters read.
    """

    request_id: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    project_id: str | None = None
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

    def __post_init__(self) -> None:
        uuids = [dashed(value) for value in self.instance_uuids]
        if uuids:
            if len(set(uuids)) != len(uuids):
                raise ValueError('expected different instance_uuids')
            self.num_instances = len(uuids)
        self.instance_uuids = uuids
        if self.instance_group:
            self.instance_group = dashed(self.instance_group)

    def with_ids(self) -> Request:
        """Return the request with a uuid for each instance and an id.

        Ids that are absent become random ones. A caller whose retry is to find
        the claim of its first attempt has to send its own.
        """
        if self.instance_uuids and self.request_id:
            return self
        return msgspec.structs.replace(
            self,
            request_id=self.request_id or f'req-{uuid.uuid4()}',
            instance_uuids=self.instance_uuids
            or [str(uuid.uuid4()) for _ in range(self.num_instances)],
        )

    @property
    def placing(self) -> str | None:
        """The instance that a place is sought for: the first, if not set.

        The pipeline sets it for one instance after the other.
        """
        uuids = self.instance_uuids
        placing: str | None = self.__dict__.get(_PLACING)
        return placing or (uuids[0] if uuids else None)

    @placing.setter
    def placing(self, uuid: str) -> None:
        self.__dict__[_PLACING] = uuid

    @property
    def image_properties(self) -> dict[str, Any]:
        """The image's properties, empty without an image."""
        return self.image.properties if self.image else {}

    @functools.cached_property
    def image_pairs(self) -> frozenset[tuple[str, str]]:
        """The image's properties as (name, text) pairs."""
        properties = self.image_properties
        return frozenset((key, str(v)) for key, v in properties.items())

    @functools.cached_property
    def disk_mb(self) -> int:
        """Root and ephemeral disk and swap together, in MB."""
        flavor = self.flavor
        return 1024 * (flavor.root_gb + flavor.ephemeral_gb) + flavor.swap

    @functools.cached_property
    def resources(self) -> dict[str, int]:
        """Amount of each resource class that one instance allocates.

        VCPU, MEMORY_MB and DISK_GB (swap rounded up to a GB) of the flavor,
        each overridden by the extra spec ``resources:CLASS``; classes with an
        amount of 0 are left out.
        """
        flavor = self.flavor
        amounts = {
            'VCPU': flavor.vcpus,
            'MEMORY_MB': flavor.memory_mb,
            'DISK_GB': flavor.root_gb
            + flavor.ephemeral_gb
            + -(-flavor.swap // 1024),
        }
        for key, value in flavor.extra_specs.items():
            scope, _, name = key.partition(':')
            if scope == 'resources' and name and _is_amount(value):
                amounts[name] = int(value)
        return {name: amount for name, amount in amounts.items() if amount}

    @functools.cached_property
    def required_traits(self) -> frozenset[str]:
        """Traits that the flavor or the image requires of the host."""
        return _traits(self.flavor.extra_specs, 'required') | _traits(
            self.image_properties, 'required'
        )

    @functools.cached_property
    def forbidden_traits(self) -> frozenset[str]:
        """Traits that the host must not have, by the flavor."""
        return _traits(self.flavor.extra_specs, 'forbidden')

    @functools.cached_property
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


class ZoneRequest(Document):
    """A DNS zone for which a pool is to be selected."""

    name: Name
    id: Uuid | None = None
    email: str | None = None
    attributes: dict[str, str] = {}
    project_id: str | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        self.attributes = Attributes(self.attributes)
        self.id = dashed(self.id) if self.id else None

    def with_ids(self) -> ZoneRequest:
        """Return the zone with an id and a request id.

        An absent id is derived from project and name, so that a repeated
        request without an id is for the same zone.
        """
        if self.id and self.request_id:
            return self
        made = uuid.uuid5(_ZONES, f'{self.project_id or ""}\0{self.name}')
        return msgspec.structs.replace(
            self,
            id=self.id or str(made),
            request_id=self.request_id or f'req-{uuid.uuid4()}',
        )


class SelectEntry(NamedTuple):
    """An entry of schedule_many that wants hosts, which are claimed."""

    request: Request


class ZoneEntry(NamedTuple):
    """An entry of schedule_many that wants a pool, which is stored."""

    zone: ZoneRequest


# An error stands for an entry that could not be parsed.
Entry = SelectEntry | ZoneEntry | errors.SchedulerError


def _is_amount(value: str) -> bool:
    """Whether the text is an integer from 0 up that a claim can hold."""
    return value.isascii() and value.isdigit() and len(value) <= 15


def _traits(specs: dict[str, Any], wanted: str) -> frozenset[str]:
    """Return X of every key ``trait:X`` with a value."""
    if not specs:
        return _NO_TRAITS
    return frozenset(
        key[6:]
        for key, value in specs.items()
        if key.startswith('trait:') and value == wanted and len(key) > 6
    )
