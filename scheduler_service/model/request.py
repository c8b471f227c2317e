"""The request documents: what is to be placed."""

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
_encode = msgspec.json.Encoder().encode
_ZONES = uuid.UUID('0bb45a0c-28a5-5c3d-8d26-64b0f1cf3a10')


class Flavor(Document):
    """The size and wishes of one instance."""

    flavorid: str | None = None
    name: str | None = None
    vcpus: Count = 0
    memory_mb: Count = 0
    root_gb: Count = 0
    ephemeral_gb: Count = 0
    swap: Count = 0
    extra_specs: dict[str, str] = {}


class Image(Document):
    """The image to boot, as far as placing goes."""

    id: str | None = None
    properties: dict[str, Any] = {}
    disk_format: str | None = None


class Retry(Document):
    """What was tried before for the same instance."""

    num_attempts: Count = 0
    hosts: list[tuple[str, str]] = []


class Destination(Document):
    """One host or cell that the caller insists on."""

    host: str | None = None
    node: str | None = None
    cell: str | None = None
    allow_cross_cell_move: bool = False


class Request(Document, dict=True):
    """How many instances of what, and where they may go.

    ``dict=True`` leaves room for the derived values below, each worked out
    once: the pipeline asks for them for every filter.
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

        Made-up ids are random: a caller that wants its retry to find the
        first attempt's claim sends its own.
        """
        if self.instance_uuids and self.request_id:
            return self
        return msgspec.structs.replace(
            self,
            request_id=self.request_id or f'req-{uuid.uuid4()}',
            instance_uuids=self.instance_uuids
            or [str(uuid.uuid4()) for _ in range(self.num_instances)],
        )

    @functools.cached_property
    def shape(self) -> bytes | None:
        """All of the request but its ids: who has it finds the same hosts.

        None where hosts may be judged by which instances they have, or by
        what was tried before, or where several instances are placed.
        """
        if (
            self.num_instances > 1
            or self.instance_group
            or self.scheduler_hints
            or self.retry
            or self.forced
        ):
            return None
        return _encode(
            (
                self.project_id,
                self.flavor,
                self.image,
                self.availability_zone,
                self.ignore_hosts,
                self.requested_destination,
            )
        )

    @property
    def image_properties(self) -> dict[str, Any]:
        """The image's properties, empty without an image."""
        return self.image.properties if self.image else {}

    @functools.cached_property
    def disk_mb(self) -> int:
        """Root, ephemeral (GB) and swap (MB) together, in MB."""
        flavor = self.flavor
        return 1024 * (flavor.root_gb + flavor.ephemeral_gb) + flavor.swap

    @functools.cached_property
    def resources(self) -> dict[str, int]:
        """Amount of each resource class that one instance takes.

        VCPU, MEMORY_MB and DISK_GB (swap rounded up to a GB) of the flavor,
        each overridden by ``resources:CLASS`` extra specs; classes of which
        nothing is asked are left out.
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
        """Traits that flavor or image require of the host."""
        return _traits(self.flavor.extra_specs, 'required') | _traits(
            self.image_properties, 'required'
        )

    @functools.cached_property
    def forbidden_traits(self) -> frozenset[str]:
        """Traits that the flavor forbids the host to have."""
        return _traits(self.flavor.extra_specs, 'forbidden')

    @functools.cached_property
    def ignored(self) -> frozenset[str]:
        """Service hosts to leave out, lower case."""
        return frozenset(name.lower() for name in self.ignore_hosts or ())

    @property
    def forced(self) -> bool:
        """Whether hosts or nodes are forced, so that filters are skipped."""
        return bool(self.force_hosts or self.force_nodes)

    def hint(self, name: str) -> Any:
        """Return a scheduler hint, or None where there is none.

        A list of one is that one; null, an empty string and an empty list
        are no hint.
        """
        value = self.scheduler_hints.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return None if value in (None, '', []) else value

    @property
    def is_rebuild(self) -> bool:
        """Whether this only checks a rebuild in place."""
        kind = self.scheduler_hints.get('_nova_check_type')
        return kind in ('rebuild', ['rebuild'])


class ZoneRequest(Document):
    """A DNS zone that needs a pool."""

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
        """Return the zone with an id; made of project and name if absent.

        So the same question without an id is still the same zone.
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
    """Whether the text is a whole number from 0 up that a claim can hold."""
    return value.isascii() and value.isdigit() and len(value) <= 15


def _traits(specs: dict[str, Any], wanted: str) -> frozenset[str]:
    """Return X of every ``trait:X`` key that has the wanted value."""
    return frozenset(
        key[6:]
        for key, value in specs.items()
        if key.startswith('trait:') and value == wanted and len(key) > 6
    )
