"""Request filters: restrictions of a request before hosts are examined.

Each is a function that runs once for a request. :data:`BUILT_IN` lists them in
the order they run in.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from scheduler_service import errors
from scheduler_service.model import Aggregate, Request
from scheduler_service.model.inventory import AggregateMap, SharedUuids
from scheduler_service.model.requirements.features import (
    device_traits,
    property_traits,
)
from scheduler_service.settings import Settings

# Key of the scope among the attributes cached on a request.
_CACHE_KEY = 'scope of request filters'
# How many aggregates of a parameter a query names that people read.
_MOST_NAMED = 20
_TRAIT_PREFIX = 'trait:'
_REQUIRED = 'required'
_PROJECT_PREFIX = 'filter_tenant_id'
# Formats of images that hosts have traits for.
_IMAGE_TYPES = frozenset(
    ('AKI', 'AMI', 'ARI', 'ISO', 'PLOOP', 'QCOW2', 'RAW', 'VDI', 'VHD', 'VHDX',
     'VMDK')
)  # fmt: skip


@dataclasses.dataclass(slots=True)
class Scope:
    """Restrictions that request filters add to a request.

    :ivar required_aggregates: sets of uuids; a host has to be in one
        aggregate of each set
    :ivar forbidden_aggregates: uuids; a host must be in none of them
    :ivar required_traits: in addition to those of flavor and image
    :ivar forbidden_traits: in addition to those of flavor and image
    :ivar unknown_zone: requested, and of no aggregate: it restricts nothing
    """

    required_aggregates: list[frozenset[str]] = dataclasses.field(
        default_factory=list
    )
    forbidden_aggregates: frozenset[str] = frozenset()
    required_traits: set[str] = dataclasses.field(default_factory=set)
    forbidden_traits: set[str] = dataclasses.field(default_factory=set)
    unknown_zone: str = ''

    def __bool__(self) -> bool:
        return bool(
            self.required_aggregates
            or self.forbidden_aggregates
            or self.required_traits
            or self.forbidden_traits
        )

    def forbid(self, uuids: frozenset[str]) -> None:
        """Forbid aggregates as well.

        Often a single filter forbids aggregates, the same for many requests:
        its set is not copied, since copying and hashing are slow.
        """
        if self.forbidden_aggregates:
            uuids = self.forbidden_aggregates | uuids
        self.forbidden_aggregates = uuids

    def query(self, most: int = sys.maxsize) -> str:
        """Return the scope as the parameters of a placement query.

        ``member_of=in:a,b`` for each set, ``member_of=!in:c,d`` for the
        forbidden aggregates, ``required=T1,!T2`` for traits; uuids and names
        are sorted.

        :param most: the largest number of aggregates, traits and sets to
            name; the others are counted
        """
        sets = self.required_aggregates
        parameters = [
            f'member_of=in:{_joined(sorted(uuids), most)}'
            for uuids in sets[:most]
        ]
        if len(sets) > most:
            parameters.append(f'... ({len(sets) - most:,} more)')
        if self.forbidden_aggregates:
            uuids = _joined(sorted(self.forbidden_aggregates), most)
            parameters.append(f'member_of=!in:{uuids}')
        traits = sorted(self.required_traits)
        traits += [f'!{name}' for name in sorted(self.forbidden_traits)]
        if traits:
            parameters.append(f'required={_joined(traits, most)}')
        return '&'.join(parameters)


def _joined(named: list[str], most: int) -> str:
    if len(named) > most:
        named[most:] = [f'... ({len(named) - most:,} more)']
    return ','.join(named)


class ScopedRequest(NamedTuple):
    """A request, what its restrictions depend on, and the restrictions.

    :ivar aggregates: all aggregates by id
    :ivar scope: gets the restrictions
    """

    request: Request
    aggregates: AggregateMap
    settings: Settings
    scope: Scope


def require_tenant_aggregate(scoped: ScopedRequest) -> None:
    """Keeps the instances of a project on the project's own aggregates.

    Those are aggregates with a metadata key that starts with
    ``filter_tenant_id`` and has the project's id as its whole value. A
    project without any may use all hosts, or none with
    ``placement_aggregate_required_for_tenants``.
    """
    request, aggregates, settings, scope = scoped
    if not settings.limit_tenants_to_placement_aggregate:
        return
    by_project = _uuids_by(aggregates, 'by project', _projects)
    uuids = by_project.get(request.project_id)
    if uuids:
        scope.required_aggregates.append(uuids)
    elif settings.placement_aggregate_required_for_tenants:
        raise errors.RequestFilterFailed(
            'No valid host was found. No hosts available for tenant',
            project_id=request.project_id,
            filter='require_tenant_aggregate',
        )


def _projects(aggregate: Aggregate) -> set[str]:
    return {
        value
        for key, value in aggregate.metadata.items()
        if key.startswith(_PROJECT_PREFIX)
    }


def map_az_to_placement_aggregate(scoped: ScopedRequest) -> None:
    """Keeps a request on the aggregates of its availability zone.

    A zone that no aggregate has adds nothing. Each request of the compute
    service is kept so, and others with
    ``query_placement_for_availability_zone``.
    """
    request, aggregates, settings, scope = scoped
    zone = request.availability_zone
    enabled = request.lenient or settings.query_placement_for_availability_zone
    if zone and enabled:
        uuids = _uuids_by(aggregates, 'by zone', _zone).get(zone)
        if uuids:
            scope.required_aggregates.append(uuids)
        else:
            scope.unknown_zone = zone


def _zone(aggregate: Aggregate) -> list[str | None]:
    return [aggregate.metadata.get('availability_zone')]


def require_image_type_support(scoped: ScopedRequest) -> None:
    """Requires hosts that support the image's disk format.

    Formats that no host can report, such as ``gpt``, are not required.
    """
    request = scoped.request
    if not scoped.settings.query_placement_for_image_type_support:
        return
    image = None if request.boot_from_volume else request.image
    name = str(image and image.disk_format).upper()
    if name in _IMAGE_TYPES:
        scoped.scope.required_traits.add(f'COMPUTE_IMAGE_TYPE_{name}')


def compute_status_filter(scoped: ScopedRequest) -> None:
    """Forbids hosts with the trait ``COMPUTE_STATUS_DISABLED``.

    Compute services set it on hosts that are disabled.
    """
    scoped.scope.forbidden_traits.add('COMPUTE_STATUS_DISABLED')


def isolate_aggregates(scoped: ScopedRequest) -> None:
    """Keeps requests off aggregates that are reserved by traits.

    An aggregate with the metadata ``trait:NAME=required`` is forbidden unless
    the flavor or the image requires the trait; with several such keys, unless
    all of these traits are required.
    """
    request, aggregates, settings, scope = scoped
    if not settings.enable_isolated_aggregate_filtering:
        return
    reserved = _uuids_by(aggregates, 'reserved', _reserving_traits)
    if not reserved:
        return
    every: frozenset[str] = aggregates.memoize(
        'reserving traits', lambda: frozenset().union(*reserved)
    )
    required = every & request.requested_traits

    def work() -> frozenset[str]:
        return SharedUuids(
            uuid
            for traits, uuids in reserved.items()
            if not traits <= required
            for uuid in uuids
        )

    scope.forbid(aggregates.memoize(('isolated from', required), work))


def _reserving_traits(aggregate: Aggregate) -> list[frozenset[str]]:
    """Return the traits that a request needs to use an aggregate, together.

    Empty: every request may use the aggregate.
    """
    traits = frozenset(
        key.removeprefix(_TRAIT_PREFIX)
        for key, value in aggregate.metadata.items()
        if value == _REQUIRED and key.startswith(_TRAIT_PREFIX)
    )
    return [traits] if traits else []


def transform_image_metadata(scoped: ScopedRequest) -> None:
    """Requires hosts with the devices that the image's properties name.

    The properties ``hw_cdrom_bus``, ``hw_disk_bus``, ``hw_video_model``,
    ``hw_vif_model``, ``hw_architecture`` and ``hw_emulation_architecture``
    each stand for a trait. No trait is required where one of them stands for
    a trait that does not exist, or the image has ``hw_viommu_model``.
    """
    if not scoped.settings.image_metadata_prefilter:
        return
    scoped.scope.required_traits |= {*property_traits(scoped.request.specs)}


def devices_filter(scoped: ScopedRequest) -> None:
    """Requires hosts that have the devices and features of the instance.

    Accelerators (``accel:device_profile``), packed virtqueues
    (``hw:virtio_packed_ring``), virtio sound (``hw:sound_model``) and
    ephemeral encryption (``hw:ephemeral_encryption`` with its format): each
    an extra spec, and all but the first an image property, too.
    """
    scoped.scope.required_traits |= {*device_traits(scoped.request.specs)}


_Keys = Callable[[Aggregate], Iterable[Any]]


def _uuids_by(
    aggregates: AggregateMap, name: str, keys: _Keys
) -> dict[Any, frozenset[str]]:
    """Return uuids of aggregates by their keys.

    :param name: of the index
    :param keys: returns the keys of an aggregate
    """

    def work() -> dict[Any, frozenset[str]]:
        by_key: dict[Any, set[str]] = {}
        for aggregate in aggregates.values():
            for key in keys(aggregate):
                by_key.setdefault(key, set()).add(aggregate.uuid)
        return {key: SharedUuids(uuids) for key, uuids in by_key.items()}

    return aggregates.memoize(name, work)


BUILT_IN: tuple[Callable[[ScopedRequest], None], ...] = (
    require_tenant_aggregate,
    map_az_to_placement_aggregate,
    require_image_type_support,
    compute_status_filter,
    isolate_aggregates,
    transform_image_metadata,
    devices_filter,
)


def scope_of(
    request: Request,
    aggregates: AggregateMap,
    settings: Settings,
) -> Scope:
    """Return the restrictions of all request filters, none on a rebuild.

    The scope is cached on the request until aggregates or settings are
    replaced.

    :param aggregates: all aggregates by id
    :raises RequestFilterFailed: no host at all may take the request
    """
    cached = request.__dict__.get(_CACHE_KEY)
    if cached and cached[0] is aggregates and cached[1] is settings:
        cached_scope: Scope = cached[2]
        return cached_scope
    scope = Scope()
    if not request.is_rebuild:
        _add_destination(request, scope)
        scoped = ScopedRequest(request, aggregates, settings, scope)
        try:
            for request_filter in BUILT_IN:
                request_filter(scoped)
        except BaseException as fault:
            errors.raise_named(request_filter.__name__, fault)
    request.__dict__[_CACHE_KEY] = aggregates, settings, scope
    return scope


def short_query(
    request: Request, aggregates: AggregateMap, settings: Settings
) -> str:
    """Return the scope as a placement query that people read.

    It names a few aggregates of each parameter, and counts the others.
    """
    scope = scope_of(request, aggregates, settings)
    key = (
        'query',
        tuple(scope.required_aggregates),
        scope.forbidden_aggregates,
        frozenset(scope.required_traits),
        frozenset(scope.forbidden_traits),
    )
    text: str = aggregates.memoize(key, lambda: scope.query(_MOST_NAMED))
    if scope.unknown_zone:
        note = f'no aggregate has the zone {scope.unknown_zone}'
        text = f'{text} ({note})' if text else note
    return text


def _add_destination(request: Request, scope: Scope) -> None:
    """Restrict a request to the aggregates that it names itself."""
    destination = request.requested_destination
    if destination is not None:
        scope.required_aggregates += (
            frozenset(entry.split(',')) for entry in destination.aggregates
        )
        scope.forbid(frozenset(destination.forbidden_aggregates))
