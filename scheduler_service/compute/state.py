"""Translates casts of compute services into events for the store.

Any thread may call the functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service.compute import wire
from scheduler_service.engine.health import Health
from scheduler_service.model import Aggregate, Instance, documents
from scheduler_service.model.inventory import dashed
from scheduler_service.store.ports import host_state_writer

LOG = logging.getLogger(__name__)
_MAX_ENTRIES = 10_000


def aggregates(argument: Any) -> host_state_writer.UpdateAggregates:
    """Return the event for an aggregate, a list of them, or a list object.

    :raises InvalidRequest: an aggregate is invalid
    """
    plain = _objects(argument, 'aggregates')
    parsed = [
        documents.arguments(document, wire.Aggregate) for document in plain
    ]
    return host_state_writer.UpdateAggregates(
        aggregates=[_aggregate(entity) for entity in parsed]
    )


def no_aggregate(argument: Any) -> host_state_writer.DeleteAggregate:
    """Return the event for a deleted aggregate.

    :raises InvalidRequest: it is invalid
    """
    plain = wire.named(argument, 'Aggregate', 'aggregate')
    gone = documents.arguments(plain, wire.Aggregate)
    return host_state_writer.DeleteAggregate(id=_aggregate(gone).id)


def instances(host: str, argument: Any) -> host_state_writer.UpdateInstances:
    """Return the event for instances on a host, which may have others too.

    :raises InvalidRequest: an instance is invalid
    """
    plain = _objects(argument, 'instance_info')
    parsed = [
        documents.arguments(document, wire.Instance) for document in plain
    ]
    return host_state_writer.UpdateInstances(
        instances=[_instance(host, entity) for entity in parsed]
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


def _objects(argument: Any, place: str) -> list[dict[str, Any]]:
    """Unwrap an object, a list of them, or a list object; return a list."""
    plain = wire.unwrap(argument, place)
    if isinstance(plain, dict) and 'objects' in plain:
        plain = plain['objects']
    objects = plain if isinstance(plain, list) else [plain]
    if len(objects) > _MAX_ENTRIES:
        raise errors.PayloadTooLarge(
            f'{place}: at most {_MAX_ENTRIES}, got {len(objects)}'
        )
    return objects


def _aggregate(aggregate: wire.Aggregate) -> Aggregate:
    return documents.parse(_present(msgspec.to_builtins(aggregate)), Aggregate)


def _instance(host: str, instance: wire.Instance) -> Instance:
    return documents.parse(
        _present(
            {
                'uuid': instance.uuid,
                'host': instance.host or host,
                'hypervisor_hostname': instance.node,
                'project_id': instance.project_id,
                'image_id': instance.image_ref or None,
                'availability_zone': instance.availability_zone,
                'task_state': instance.task_state,
            }
        ),
        Instance,
    )


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set."""
    return {key: value for key, value in fields.items() if value is not None}


class ServiceChange(NamedTuple):
    """A cast of a compute service.

    :ivar method: such as ``update_instance_info``
    :ivar host: the service host that changed; None: aggregates
    """

    method: str
    host: str | None = None


Subscriber = Callable[[ServiceChange], None]


class ServiceChanges:
    """Subscribers to casts of compute services.

    A subscriber is called on the thread that polls the bus, so it must not
    block: it sets an event, and works on a thread of its own.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call a function with each change from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def notify(self, change: ServiceChange) -> None:
        """Call each subscriber, also where another one fails."""
        self._health.count('compute_changes', change.method)
        for subscriber in self._subscribers:
            try:
                subscriber(change)
            except Exception:
                LOG.exception('A change of %s was lost', change.method)
