"""What compute services cast to schedulers, as events to be written.

Any thread may call it.
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


def aggregates(found: Any) -> host_state_writer.UpdateAggregates:
    """Return that aggregates are as given: one, a list, or a list object.

    :raises InvalidRequest: one cannot be read
    """
    plain = _listed(found, 'aggregates')
    parsed = [
        documents.arguments(document, wire.Aggregate) for document in plain
    ]
    return host_state_writer.UpdateAggregates(
        aggregates=[_aggregate(entity) for entity in parsed]
    )


def no_aggregate(found: Any) -> host_state_writer.DeleteAggregate:
    """Return that an aggregate is gone.

    :raises InvalidRequest: it cannot be read
    """
    plain = wire.named(found, 'Aggregate', 'aggregate')
    gone = documents.arguments(plain, wire.Aggregate)
    return host_state_writer.DeleteAggregate(id=_aggregate(gone).id)


def instances(host: str, found: Any) -> host_state_writer.UpdateInstances:
    """Return that a host has instances, maybe beside others.

    :raises InvalidRequest: one cannot be read
    """
    plain = _listed(found, 'instance_info')
    parsed = [
        documents.arguments(document, wire.Instance) for document in plain
    ]
    return host_state_writer.UpdateInstances(
        instances=[_instance(host, entity) for entity in parsed]
    )


def no_instance(host: str, uuid: str) -> host_state_writer.DeleteInstances:
    """Return that a host does not have an instance any more."""
    return host_state_writer.DeleteInstances(host=host, uuids=[dashed(uuid)])


def all_instances(
    host: str, uuids: list[str]
) -> host_state_writer.SyncInstances:
    """Return that a host has these instances and no others."""
    return host_state_writer.SyncInstances(
        host=host, uuids=[dashed(uuid) for uuid in uuids]
    )


def _listed(found: Any, place: str) -> list[dict[str, Any]]:
    """Return objects unwrapped: one, a list of them, or a list object."""
    plain = wire.unwrap(found, place)
    if isinstance(plain, dict) and 'objects' in plain:
        plain = plain['objects']
    listed = plain if isinstance(plain, list) else [plain]
    if len(listed) > _MAX_ENTRIES:
        raise errors.PayloadTooLarge(
            f'{place}: at most {_MAX_ENTRIES}, got {len(listed)}'
        )
    return listed


def _aggregate(found: wire.Aggregate) -> Aggregate:
    return documents.parse(_present(msgspec.to_builtins(found)), Aggregate)


def _instance(host: str, found: wire.Instance) -> Instance:
    return documents.parse(
        _present(
            {
                'uuid': found.uuid,
                'host': found.host or host,
                'hypervisor_hostname': found.node,
                'project_id': found.project_id,
                'image_id': found.image_ref or None,
                'availability_zone': found.availability_zone,
                'task_state': found.task_state,
            }
        ),
        Instance,
    )


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set."""
    return {key: one for key, one in fields.items() if one is not None}


class ServiceChange(NamedTuple):
    """What a compute service told.

    :ivar method: that told it, such as ``update_instance_info``
    :ivar host: service host that it is about; None: aggregates
    """

    method: str
    host: str | None = None


Subscriber = Callable[[ServiceChange], None]


class ServiceChanges:
    """Those who want to know of changes.

    A subscriber is called on the thread that polls the bus, so it must not
    wait: it sets an event, and looks on a thread of its own.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have a function called with each change from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def notify(self, change: ServiceChange) -> None:
        """Tell everyone; one that fails does not keep it from the others."""
        self._health.count('compute_changes', change.method)
        for subscriber in self._subscribers:
            try:
                subscriber(change)
            except Exception:
                LOG.exception('A change of %s was lost', change.method)
