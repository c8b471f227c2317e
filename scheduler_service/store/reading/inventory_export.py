"""Exports the whole store as an inventory document.

Stateless: any thread may call it with a connection of its own.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection

from scheduler_service.model import Inventory
from scheduler_service.store.reading import loading


def export(conn: Connection) -> Inventory:
    """Return an inventory document of everything that is stored."""
    counts = loading.instance_counts(conn)
    hosts = list(loading.hosts(conn).values())
    for host in hosts:
        # Stated only where it differs from the number of instances listed.
        name = host.host, host.hypervisor_hostname
        if host.num_instances == counts.get(name, 0):
            host.num_instances = None
    return Inventory(
        pools=list(loading.pools(conn).values()),
        hosts=hosts,
        aggregates=loading.aggregates(conn),
        instances=[one for one, _ in loading.instance_documents(conn)],
        server_groups=list(loading.groups(conn).values()),
    )
