"""What compute services cast to schedulers, as events to be written.

Stateless; any thread may call it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.compute import objects, wire
from scheduler_service.engine import events
from scheduler_service.model import Aggregate, Instance, documents
from scheduler_service.model.inventory import dashed

_MAX_ENTRIES = 10_000


def aggregates(found: Any) -> events.UpdateAggregates:
    """Return that aggregates are as given: one, a list, or a list object.

    :raises InvalidRequest: one cannot be read
    """
    plain = _listed(found, 'aggregates')
    parsed = [documents.arguments(one, wire.Aggregate) for one in plain]
    return events.UpdateAggregates(
        aggregates=[_aggregate(one) for one in parsed]
    )


def no_aggregate(found: Any) -> events.DeleteAggregate:
    """Return that an aggregate is gone.

    :raises InvalidRequest: it cannot be read
    """
    plain = objects.named(found, 'Aggregate', 'aggregate')
    gone = documents.arguments(plain, wire.Aggregate)
    return events.DeleteAggregate(id=_aggregate(gone).id)


def instances(host: str, found: Any) -> events.UpdateInstances:
    """Return that a host has instances, maybe beside others.

    :raises InvalidRequest: one cannot be read
    """
    plain = _listed(found, 'instance_info')
    parsed = [documents.arguments(one, wire.Instance) for one in plain]
    return events.UpdateInstances(
        instances=[_instance(host, one) for one in parsed]
    )


def no_instance(host: str, uuid: str) -> events.DeleteInstances:
    """Return that a host does not have an instance any more."""
    return events.DeleteInstances(host=host, uuids=[dashed(uuid)])


def all_instances(host: str, uuids: list[str]) -> events.SyncInstances:
    """Return that a host has these instances and no others."""
    return events.SyncInstances(
        host=host, uuids=[dashed(uuid) for uuid in uuids]
    )


def _listed(found: Any, place: str) -> list[dict[str, Any]]:
    """Return objects unwrapped: one, a list of them, or a list object."""
    plain = objects.unwrap(found, place)
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
