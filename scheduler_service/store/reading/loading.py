"""Reads entities into documents: all of a kind, or some by their keys.

Stateless: any thread may call it with a connection of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import placed
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.model import (
    STANDARD_FIELDS,
    Aggregate,
    Host,
    Instance,
    Metric,
    Pool,
    Resource,
    ServerGroup,
    UnitLimits,
)
from scheduler_service.store import schema
from scheduler_service.store.connection import REVISION, in_chunks
from scheduler_service.store.reading import queries

_CHUNK = 500
_NO_DOCUMENT = '{}'
MAX_UNIT = 2**53


class Load(NamedTuple):
    """What changes of a host with every claim."""

    used: dict[str, int]
    available_least: int | None
    num_instances: int
    num_io_ops: int
    up: bool


def newest_change(conn: Connection) -> tuple[int, str | None]:
    """Return the revision and the lineage of the last change.

    The lineage is None where that change is not stored.
    """
    counters, changes = schema.counters, schema.changes
    found = conn.execute(
        sa.select(counters.c.value, changes.c.lineage)
        .outerjoin_from(
            counters, changes, changes.c.revision == counters.c.value
        )
        .where(counters.c.name == REVISION)
    ).one()
    return int(found.value), found.lineage


def hosts(
    conn: Connection,
    ids: Iterable[int] | None = None,
    reported: bool = False,
) -> dict[int, Host]:
    """Return host documents by store id, in the order of the ids.

    :param ids: only these; None: all
    :param reported: use without what claims hold
    """
    found: dict[int, Host] = {}
    for part in [None] if ids is None else in_chunks(ids, _CHUNK):
        found.update(_hosts(conn, part, reported))
    return dict(sorted(found.items()))


def host_names(conn: Connection) -> set[str]:
    """Return the names of all service hosts."""
    return set(conn.execute(sa.select(schema.hosts.c.host)).scalars())


def _hosts(
    conn: Connection, ids: list[int] | None, reported: bool
) -> dict[int, Host]:
    found = queries.HOSTS.run(conn, ids).all()
    offered = _inventories(conn, ids, reported)
    named = _traits(conn, ids)
    counts = {} if reported else instance_counts(conn, ids)
    return {
        row.id: _host(
            row,
            offered.get(row.id, {}),
            named.get(row.id, []),
            row.instances_other + counts.get((row.host, row.node), 0),
        )
        for row in found
    }


def _host(
    row: Any,
    fields: dict[str, Any],
    traits: list[str],
    num_instances: int,
) -> Host:
    extra = {}
    if row.document != _NO_DOCUMENT:
        extra = msgspec.json.decode(row.document)
        if extra.get('metrics'):
            extra['metrics'] = msgspec.convert(extra['metrics'], list[Metric])
    return Host(
        host=row.host,
        hypervisor_hostname=row.node,
        uuid=row.uuid,
        status=row.status,
        disabled_reason=row.disabled_reason,
        state=row.state,
        hypervisor_type=row.hypervisor_type,
        hypervisor_version=row.hypervisor_version,
        host_ip=row.host_ip,
        cell_uuid=row.cell_uuid,
        num_io_ops=row.num_io_ops,
        failed_builds=row.failed_builds,
        num_instances=num_instances,
        traits=traits,
        **fields,
        **extra,
    )


def _inventories(
    conn: Connection, ids: list[int] | None, reported: bool
) -> dict[int, dict[str, Any]]:
    """Return the fields of host documents that are stored as inventories."""
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in queries.INVENTORIES.run(conn, ids).all():
        fields = found[row.host_id]
        used = row.reported if reported else row.used
        if row.resource_class in STANDARD_FIELDS:
            total, use, ratio = STANDARD_FIELDS[row.resource_class]
            fields[total] = row.total
            fields[use] = used
            fields[ratio] = row.allocation_ratio
            if row.resource_class == 'DISK_GB':
                fields['disk_available_least'] = row.available_least
            limits = _unit_limits(row)
            if limits is not None:
                units = fields.setdefault('units', {})
                units[row.resource_class] = limits
        else:
            fields.setdefault('resources', {})[row.resource_class] = Resource(
                total=row.total,
                used=used,
                reserved=row.reserved,
                min_unit=row.min_unit,
                max_unit=None if row.max_unit == MAX_UNIT else row.max_unit,
                step_size=row.step_size,
                allocation_ratio=row.allocation_ratio,
            )
    return found


def _unit_limits(row: Any) -> UnitLimits | None:
    """Return the limits of a single allocation; None: there are none."""
    if (row.min_unit, row.max_unit, row.step_size) == (1, MAX_UNIT, 1):
        return None
    return UnitLimits(
        min_unit=row.min_unit,
        max_unit=None if row.max_unit == MAX_UNIT else row.max_unit,
        step_size=row.step_size,
    )


def _traits(conn: Connection, ids: list[int] | None) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for host_id, name in queries.TRAITS.run(conn, ids).all():
        found[host_id].append(name)
    return found


def instance_counts(
    conn: Connection, ids: list[int] | None = None
) -> dict[tuple[str, str], int]:
    """Return how many instances each (host, node) has or will get.

    :param ids: only of these hosts; None: of all
    """
    found: Counter[tuple[str, str]] = Counter()
    for host, node, count in queries.INSTANCE_COUNTS.run(conn, ids):
        found[host, node] += count
    return found


def loads(conn: Connection, ids: Iterable[int]) -> dict[int, Load]:
    """Return what changes of some hosts with every claim, by store id."""
    found: dict[int, Load] = {}
    for part in in_chunks(ids, _CHUNK):
        found.update(_loads(conn, part))
    return found


def _loads(conn: Connection, ids: list[int]) -> dict[int, Load]:
    counts = instance_counts(conn, ids)
    found = {
        row.id: Load(
            {},
            None,
            row.instances_other + counts.get((row.host, row.node), 0),
            row.num_io_ops,
            row.state == 'up',
        )
        for row in conn.execute(queries.HOST_LOADS, {'keys': ids})
    }
    for host_id, name, used, least in conn.execute(
        queries.USES, {'keys': ids}
    ):
        load = found[host_id]
        load.used[name] = used
        if name == 'DISK_GB':
            found[host_id] = load._replace(available_least=least)
    return found


def aggregates(conn: Connection) -> list[Aggregate]:
    """Return all aggregates, by id."""
    members: dict[int, list[str]] = defaultdict(list)
    table = schema.aggregate_hosts
    query = sa.select(table).order_by(table.c.aggregate_id, table.c.host)
    for aggregate_id, host in conn.execute(query).all():
        members[aggregate_id].append(host)
    metadata: dict[int, dict[str, str]] = defaultdict(dict)
    pairs = schema.aggregate_metadata
    ordered = sa.select(pairs).order_by(pairs.c.aggregate_id, pairs.c.key)
    for aggregate_id, key, value in conn.execute(ordered):
        metadata[aggregate_id][key] = value
    rows = conn.execute(
        sa.select(schema.aggregates).order_by(schema.aggregates.c.id)
    )
    return [
        Aggregate(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            hosts=members[row.id],
            metadata=metadata[row.id],
        )
        for row in rows
    ]


def instances(
    conn: Connection, uuids: Iterable[str] | None = None
) -> list[PlacedInstance]:
    """Return entries for the instance index; None: of all instances."""
    wanted = None if uuids is None else list(uuids)
    moving = bound_for(conn, wanted)
    return [
        placed(one, state != 'reported', moving.get(one.uuid, ''))
        for one, state in instance_documents(conn, wanted)
    ]


def bound_for(
    conn: Connection, uuids: list[str] | None = None
) -> dict[str, str]:
    """Return the service hosts that instances move to; None: all."""
    found: dict[str, str] = {}
    for part in [None] if uuids is None else in_chunks(uuids, _CHUNK):
        moves = queries.BOUND_FOR.run(conn, part)
        found.update((row.instance_uuid, row.host) for row in moves)
    return found


def instance_documents(
    conn: Connection, uuids: Iterable[str] | None = None
) -> list[tuple[Instance, str]]:
    """Return (instance, state) pairs; None: all of them, by uuid."""
    found: list[tuple[Instance, str]] = []
    for part in [None] if uuids is None else in_chunks(uuids, _CHUNK):
        there = queries.INSTANCES.run(conn, part)
        found += [(_instance(row), row.state) for row in there]
    return sorted(found, key=lambda pair: pair[0].uuid)


def _instance(row: Any) -> Instance:
    extra = msgspec.json.decode(row.document)
    return Instance(
        uuid=row.uuid,
        host=row.host,
        hypervisor_hostname=row.node,
        project_id=row.project_id,
        **extra,
    )


def groups(
    conn: Connection, uuids: Iterable[str] | None = None
) -> dict[str, ServerGroup]:
    """Return server groups with their members by uuid; None: all."""
    found: dict[str, ServerGroup] = {}
    for part in [None] if uuids is None else in_chunks(uuids, _CHUNK):
        found.update(_groups(conn, part))
    return found


def _groups(
    conn: Connection, uuids: list[str] | None
) -> Mapping[str, ServerGroup]:
    members: dict[str, list[str]] = defaultdict(list)
    for group, member in queries.MEMBERS.run(conn, uuids):
        members[group].append(member)
    return {
        row.uuid: ServerGroup(
            uuid=row.uuid,
            name=row.name,
            project_id=row.project_id,
            policy=row.policy,
            rules={}
            if row.max_server_per_host is None
            else {'max_server_per_host': row.max_server_per_host},
            members=members[row.uuid],
        )
        for row in queries.GROUPS.run(conn, uuids)
    }


def pools(conn: Connection) -> dict[str, Pool]:
    """Return all pools by id, in the order of their names."""
    attributes: dict[str, dict[str, str]] = defaultdict(dict)
    pairs = schema.pool_attributes
    query = sa.select(pairs).order_by(pairs.c.pool_id, pairs.c.key)
    for pool_id, key, value in conn.execute(query):
        attributes[pool_id][key] = value
    rows = conn.execute(sa.select(schema.pools).order_by(schema.pools.c.name))
    return {
        row.id: Pool(
            id=row.id,
            name=row.name,
            description=row.description,
            attributes=attributes[row.id],
        )
        for row in rows
    }
