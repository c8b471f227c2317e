"""Reads the instances of a host as requests for another host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import Instance, Request, documents
from scheduler_service.model.request_parts import Flavor
from scheduler_service.store import schema
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import select_in

# Fields of a flavor that are read if the host or the caller reported them.
_FLAVOR = tuple(Flavor.__struct_fields__)


def requests(conn: Connection, host: str) -> list[Request]:
    """Return a request for each instance that is on a service host.

    The amounts are those of an instance's claim; of an instance that was only
    reported, those of its flavor. Instances that already move away from the
    host are left out.
    """
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.host == host, loading.IS_INSTANCE
    )
    uuids = list(conn.execute(query.order_by(table.c.uuid)).scalars())
    moving = loading.bound_for(conn, uuids)
    staying = [uuid for uuid in uuids if uuid not in moving]
    held: dict[str, dict[str, int]] = defaultdict(dict)
    allocated = schema.allocations
    for row in select_in(
        conn, sa.select(allocated), allocated.c.consumer_uuid, staying
    ):
        held[row.consumer_uuid][row.resource_class] = row.amount
    return [
        _request(instance, held[instance.uuid])
        for instance, _ in loading.instance_documents(conn, staying)
    ]


def _request(instance: Instance, held: dict[str, int]) -> Request:
    flavor = {
        key: value
        for key, value in instance.flavor.items()
        if key in _FLAVOR and value is not None
    }
    for field, name in (
        ('vcpus', 'VCPU'),
        ('memory_mb', 'MEMORY_MB'),
        ('root_gb', 'DISK_GB'),
    ):
        if name in held:
            flavor[field] = held[name]
    document: dict[str, Any] = {
        'request_id': f'drain-{instance.uuid}',
        'project_id': instance.project_id,
        'instance_uuids': [instance.uuid],
        'flavor': flavor,
        'availability_zone': instance.availability_zone,
        'ignore_hosts': [instance.host],
        'amounts': held or None,
        'image': _image(instance),
    }
    try:
        return documents.request(document)
    except errors.InvalidRequest:
        # Flavor and image are in a form of the service that reported them.
        document.update(flavor={}, image=None)
        return documents.request(document)


def _image(instance: Instance) -> dict[str, Any] | None:
    properties = instance.image_meta.get('properties')
    if not isinstance(properties, Mapping):
        return None
    return {'id': instance.image_id, 'properties': dict(properties)}
