"""Translates casts of compute services into events for the store.

Any thread may call the functions, which raise InvalidRequest where an object
is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from scheduler_service.compute import wire
from scheduler_service.model import (
    Aggregate,
    Instance,
    documents,
    image_properties,
)
from scheduler_service.model.inventory import dashed
from scheduler_service.store.workers import host_state_writer

T = TypeVar('T')
_MAX_ENTRIES = 10_000
# The fields that are read -> ours.
_AGGREGATE = {
    name: name for name in ('id', 'uuid', 'name', 'hosts', 'metadata')
}
_INSTANCE = {
    'uuid': 'uuid',
    'host': 'host',
    'node': 'hypervisor_hostname',
    'project_id': 'project_id',
    'image_ref': 'image_id',
    'availability_zone': 'availability_zone',
    'task_state': 'task_state',
}


def aggregates(argument: Any) -> host_state_writer.UpdateAggregates:
    """Return the event for an aggregate, a list of them, or a list object."""
    return host_state_writer.UpdateAggregates(
        aggregates=[
            _document(plain, _AGGREGATE, Aggregate)
            for plain in _objects(argument, 'aggregates')
        ]
    )


def no_aggregate(argument: Any) -> host_state_writer.DeleteAggregate:
    """Return the event for a deleted aggregate."""
    plain = wire.named(argument, 'Aggregate', 'aggregate')
    gone = _document(plain, _AGGREGATE, Aggregate)
    return host_state_writer.DeleteAggregate(id=gone.id)


def instances(host: str, argument: Any) -> host_state_writer.UpdateInstances:
    """Return the event for instances on a host, which may have others too."""
    return host_state_writer.UpdateInstances(
        instances=[
            _document(
                plain, _INSTANCE, Instance, host=host, image_meta=_image(plain)
            )
            for plain in _objects(argument, 'instance_info')
        ]
    )


def no_instance(host: str, uuid: str) -> host_state_writer.DeleteInstances:
    """Return the event for an instance that left a host."""
    return host_state_writer.DeleteInstances(host=host, uuids=[dashed(uuid)])


def all_instances(
    host: str, uuids: list[str]
) -> host_state_writer.SyncInstances:
    """Return the event for all the instances of a host."""
    return host_state_writer.SyncInstances(
        host=host, uuids=[dashed(uuid) for uuid in uuids]
    )


def _image(plain: Any) -> dict[str, Any]:
    """Return what is known of an instance's image."""
    if not isinstance(plain, dict):
        return {}
    return image_properties.of_system_metadata(plain.get('system_metadata'))


def _objects(argument: Any, place: str) -> list[Any]:
    """Unwrap an object, a list of them, or a list object; return a list."""
    plain = wire.unwrap(argument, place)
    if isinstance(plain, dict) and 'objects' in plain:
        plain = plain['objects']
    objects = plain if isinstance(plain, list) else [plain]
    documents.check_count(objects, place, _MAX_ENTRIES)
    return objects


def _document(
    plain: Any, names: Mapping[str, str], kind: type[T], **defaults: Any
) -> T:
    """Return an object as our document, of the fields that are set."""
    if isinstance(plain, dict):
        read = {ours: plain.get(theirs) for theirs, ours in names.items()}
        given = {name: v for name, v in read.items() if v not in (None, '')}
        plain = {**defaults, **given}
    return documents.parse(plain, kind)
