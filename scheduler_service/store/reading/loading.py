"""Reads entities into documents: all of a kind, or some by their keys.

:func:`export` reads the whole store as an inventory document.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import (
    COUNT_FIELDS,
    ENCODED_FIELDS,
    FLAG_FIELDS,
    STANDARD_FIELDS,
    Aggregate,
    Host,
    Instance,
    Inventory,
    Metric,
    Pool,
    Resource,
    ServerGroup,
    UnitLimits,
)
from scheduler_service.model.inventory import provider_of
from scheduler_service.store import rows, schema
from scheduler_service.store.connection import REVISION, in_chunks

MAX_UNIT = 2**53
# Columns of hosts with the names of the document's fields.
HOST_COLUMNS = (
    'uuid',
    'host',
    *ENCODED_FIELDS,
    *COUNT_FIELDS,
    *FLAG_FIELDS,
)


# Pods count by what they use alone.
IS_INSTANCE = schema.instances.c.kind == sa.literal_column("'instance'")


class Query(NamedTuple):
    """A query of all rows of a kind, and of those with some ``keys``."""

    every: Any
    some: Any

    def run(self, conn: Connection, keys: Iterable[Any] | None) -> list[Any]:
        """Return the rows of these keys; None: all rows."""
        if keys is None:
            return list(conn.execute(self.every).all())
        return rows.select_among(conn, self.some, keys)


def _query(every: Any, column: Any) -> Query:
    return Query(every, every.where(rows.among(column)))


def _ordered(table: sa.Table) -> Any:
    """Return the query of all rows of a table, by its key."""
    return sa.select(table).order_by(*table.primary_key.columns)


def _counting(names: Any = None) -> Any:
    """Return the query of instances and moves by host and node.

    :param names: query of the service hosts to count for; None: all
    """
    counts = []
    for table, kept in (
        (schema.instances, IS_INSTANCE),
        (schema.moves, sa.true()),
    ):
        counted = sa.select(table.c.host, table.c.node, sa.func.count()).where(
            kept
        )
        if names is not None:
            counted = counted.where(table.c.host.in_(names))
        counts.append(counted.group_by(table.c.host, table.c.node))
    return sa.union_all(*counts)


# Built once: building a query takes three times as long as executing it.
_HOSTS = _query(sa.select(schema.hosts), schema.hosts.c.id)
_OFFERED = sa.select(schema.inventories).where(schema.IS_OFFERED)
_INVENTORIES = _query(_OFFERED, schema.inventories.c.host_id)
_OF_AGGREGATES = _OFFERED.where(schema.inventories.c.host_id < 0)
_TRAITS = _query(_ordered(schema.traits), schema.traits.c.host_id)
INSTANCE_COUNTS = Query(
    _counting(),
    _counting(
        sa.select(schema.hosts.c.host).where(rows.among(schema.hosts.c.id))
    ),
)
BOUND_FOR = _query(
    sa.select(schema.moves.c.instance_uuid, schema.moves.c.host),
    schema.moves.c.instance_uuid,
)
# Columns of instances that snapshots need, in this order.
INSTANCE_COLUMNS = tuple(
    schema.instances.c[name]
    for name in ('uuid', 'host', 'node', 'state', 'project_id', 'document')
)
INSTANCES = _query(
    sa.select(*INSTANCE_COLUMNS).where(IS_INSTANCE), schema.instances.c.uuid
)
MEMBERS = _query(
    _ordered(schema.server_group_members),
    schema.server_group_members.c.group_uuid,
)
GROUPS = _query(
    sa.select(schema.server_groups).order_by(
        schema.server_groups.c.name, schema.server_groups.c.uuid
    ),
    schema.server_groups.c.uuid,
)


def newest_change(conn: Connection) -> tuple[int, str | None]:
    """Return the revision and the lineage of the last change.

    The lineage is None if the change is not stored.
    """
    counters, changes = schema.counters, schema.changes
    newest = conn.execute(
        sa.select(counters.c.value, changes.c.lineage)
        .outerjoin_from(
            counters, changes, changes.c.revision == counters.c.value
        )
        .where(counters.c.name == REVISION)
    ).one()
    return int(newest.value), newest.lineage


def hosts(
    conn: Connection,
    ids: Iterable[int] | None = None,
    reported: bool = False,
) -> dict[int, Host]:
    """Return host documents by store id, in the order of the ids.

    :param ids: only these; None: all
    :param reported: use without that of claims
    """
    keys = None if ids is None else list(ids)
    rows = _HOSTS.run(conn, keys)
    offered = _inventories(_INVENTORIES.run(conn, keys), reported)
    traits: dict[int, list[str]] = defaultdict(list)
    for host_id, name in _TRAITS.run(conn, keys):
        traits[host_id].append(name)
    counts = {} if reported else instance_counts(conn, keys)
    return {
        row.id: _host(
            row,
            offered[row.id],
            traits[row.id],
            counts.get((row.host, row.node), 0),
        )
        for row in sorted(rows, key=lambda row: row.id)
    }


def host_names(conn: Connection) -> set[str]:
    """Return the names of all service hosts."""
    return set(conn.execute(sa.select(schema.hosts.c.host)).scalars())


def _host(
    row: Any, offered: dict[str, Any], traits: list[str], instances: int
) -> Host:
    nested = msgspec.json.decode(row.document)
    if nested.get('metrics'):
        nested['metrics'] = msgspec.convert(nested['metrics'], list[Metric])
    return Host(
        **{name: getattr(row, name) for name in HOST_COLUMNS},
        hypervisor_hostname=row.node,
        num_instances=row.instances_other + instances,
        traits=traits,
        **offered,
        **nested,
    )


def _inventories(
    stored: Iterable[Any], reported: bool
) -> dict[int, dict[str, Any]]:
    """Return the fields of documents that are stored as inventories."""
    offered: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in stored:
        fields, name = offered[row.host_id], row.resource_class
        used = row.reported if reported else row.used
        limits = {
            'min_unit': row.min_unit,
            'max_unit': None if row.max_unit == MAX_UNIT else row.max_unit,
            'step_size': row.step_size,
        }
        if name not in STANDARD_FIELDS:
            fields.setdefault('resources', {})[name] = Resource(
                total=row.total,
                used=used,
                reserved=row.reserved,
                allocation_ratio=row.allocation_ratio,
                **limits,
            )
            continue
        fields.update(
            zip(
                STANDARD_FIELDS[name],
                (row.total, used, row.allocation_ratio),
                strict=True,
            )
        )
        if name == 'DISK_GB':
            fields['disk_available_least'] = row.available_least
        if tuple(limits.values()) != (1, None, 1):
            fields.setdefault('units', {})[name] = UnitLimits(**limits)
    return offered


def instance_counts(
    conn: Connection, ids: list[int] | None = None
) -> dict[tuple[str, str], int]:
    """Return the number of present and coming instances by (host, node).

    :param ids: only of these hosts; None: of all
    """
    counts: dict[tuple[str, str], int] = {}
    for part in [None] if ids is None else in_chunks(ids):
        # Nodes of a service host may be in several parts.
        of_part: Counter[tuple[str, str]] = Counter()
        for host, node, count in INSTANCE_COUNTS.run(conn, part):
            of_part[host, node] += count
        counts.update(of_part)
    return counts


def aggregates(conn: Connection, reported: bool = False) -> list[Aggregate]:
    """Return all aggregates, by id.

    :param reported: use without that of claims
    """
    members: dict[int, list[str]] = defaultdict(list)
    for aggregate_id, host in conn.execute(_ordered(schema.aggregate_hosts)):
        members[aggregate_id].append(host)
    metadata: dict[int, dict[str, str]] = defaultdict(dict)
    pairs = conn.execute(_ordered(schema.aggregate_metadata))
    for aggregate_id, key, value in pairs:
        metadata[aggregate_id][key] = value
    offered = _inventories(conn.execute(_OF_AGGREGATES), reported)
    rows = conn.execute(_ordered(schema.aggregates))
    return [
        Aggregate(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            hosts=members[row.id],
            metadata=metadata[row.id],
            **offered[provider_of(row.id)],
        )
        for row in rows
    ]


def bound_for(
    conn: Connection, uuids: list[str] | None = None
) -> dict[str, str]:
    """Return the service hosts that instances move to; None: all."""
    rows = BOUND_FOR.run(conn, uuids)
    return {row.instance_uuid: row.host for row in rows}


def instance_documents(
    conn: Connection, uuids: Iterable[str] | None = None
) -> list[tuple[Instance, str]]:
    """Return (instance, state) pairs; None: all of them, by uuid."""
    rows = INSTANCES.run(conn, uuids)
    documents = [
        (
            Instance(
                uuid=row.uuid,
                host=row.host,
                hypervisor_hostname=row.node,
                project_id=row.project_id,
                **msgspec.json.decode(row.document),
            ),
            row.state,
        )
        for row in rows
    ]
    return sorted(documents, key=lambda pair: pair[0].uuid)


def groups(
    conn: Connection, uuids: Iterable[str] | None = None
) -> dict[str, ServerGroup]:
    """Return server groups with their members by uuid; None: all."""
    keys = None if uuids is None else list(uuids)
    members: dict[str, list[str]] = defaultdict(list)
    for group, member in MEMBERS.run(conn, keys):
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
        for row in GROUPS.run(conn, keys)
    }


def pools(conn: Connection) -> dict[str, Pool]:
    """Return all pools by id, in the order of their names."""
    attributes: dict[str, dict[str, str]] = defaultdict(dict)
    pairs = conn.execute(_ordered(schema.pool_attributes))
    for pool_id, key, value in pairs:
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


def export(conn: Connection) -> Inventory:
    """Return an inventory document of everything that is stored."""
    counts = instance_counts(conn)
    documents = list(hosts(conn).values())
    for host in documents:
        # None stands for the number of instances in the document.
        name = host.host, host.hypervisor_hostname
        if host.num_instances == counts.get(name, 0):
            host.num_instances = None
    return Inventory(
        pools=list(pools(conn).values()),
        hosts=documents,
        aggregates=aggregates(conn),
        instances=[instance for instance, _ in instance_documents(conn)],
        server_groups=list(groups(conn).values()),
    )
