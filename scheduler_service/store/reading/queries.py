"""The queries of :mod:`loading`, made once.

To make such a query anew takes three times as long as to execute it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import rows, schema


class Query(NamedTuple):
    """A query of all rows of a kind, and of those with some ``keys``."""

    every: Any
    some: Any

    def run(self, conn: Connection, keys: list[Any] | None) -> Any:
        """Execute it; None: for all rows."""
        if keys is None:
            return conn.execute(self.every)
        return conn.execute(self.some, {'keys': keys})


def _query(every: Any, column: Any) -> Query:
    return Query(every, every.where(rows.among(column)))


def _counting(names: Any = None) -> Any:
    """Return the query of instances and moves by host and node.

    :param names: query of the service hosts to count for; None: all
    """
    counts = []
    for table in (schema.instances, schema.moves):
        counted = sa.select(table.c.host, table.c.node, sa.func.count())
        if names is not None:
            counted = counted.where(table.c.host.in_(names))
        counts.append(counted.group_by(table.c.host, table.c.node))
    return sa.union_all(*counts)


_hosts, _offered = schema.hosts, schema.inventories
HOSTS = _query(sa.select(_hosts), _hosts.c.id)
INVENTORIES = _query(sa.select(_offered), _offered.c.host_id)
TRAITS = _query(
    sa.select(schema.traits).order_by(
        schema.traits.c.host_id, schema.traits.c.name
    ),
    schema.traits.c.host_id,
)
INSTANCE_COUNTS = Query(
    _counting(),
    _counting(sa.select(_hosts.c.host).where(rows.among(_hosts.c.id))),
)
HOST_LOADS = sa.select(
    _hosts.c.id,
    _hosts.c.host,
    _hosts.c.node,
    _hosts.c.num_io_ops,
    _hosts.c.instances_other,
    _hosts.c.state,
).where(rows.among(_hosts.c.id))
USES = sa.select(
    _offered.c.host_id,
    _offered.c.resource_class,
    _offered.c.used,
    _offered.c.available_least,
).where(rows.among(_offered.c.host_id))
BOUND_FOR = _query(
    sa.select(schema.moves.c.instance_uuid, schema.moves.c.host),
    schema.moves.c.instance_uuid,
)
INSTANCES = _query(
    sa.select(
        schema.instances.c.uuid,
        schema.instances.c.host,
        schema.instances.c.node,
        schema.instances.c.state,
        schema.instances.c.project_id,
        schema.instances.c.document,
    ),
    schema.instances.c.uuid,
)
MEMBERS = _query(
    sa.select(schema.server_group_members).order_by(
        schema.server_group_members.c.group_uuid,
        schema.server_group_members.c.instance_uuid,
    ),
    schema.server_group_members.c.group_uuid,
)
GROUPS = _query(
    sa.select(schema.server_groups).order_by(
        schema.server_groups.c.name, schema.server_groups.c.uuid
    ),
    schema.server_groups.c.uuid,
)
