"""Documents of a host, with what is recorded about it beside."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments, texts
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.reading import loading
from scheduler_service.store.records import event_log, refused_reports

_CLAIM = 'uuid', 'kind', 'state', 'project_id', 'request_id', 'created_at'


def of_host(conn: Connection, host: str) -> list[dict[str, Any]]:
    """Return the documents of a service host's nodes.

    :return: with the ``claims`` on each; where it is disabled, with
        ``disabled``; where reports were refused, with ``refused_reports``
    :raises HostNotFound: the host does not exist
    """
    hosts = schema.hosts.c
    ids = conn.execute(sa.select(hosts.id).where(hosts.host == host)).scalars()
    nodes = [
        msgspec.to_builtins(stored)
        for stored in loading.hosts(conn, ids).values()
    ]
    refusals = refused_reports.of_host(conn, host)
    refused = refusals and {
        'count': refusals.refused,
        'last_at': moments.text(refusals.refused_at),
        'last_reason': refusals.reason,
    }
    if not nodes:
        near = texts.nearest(host, sorted(loading.host_names(conn)))
        report = f'; a report was refused: {refused}' if refused else near
        raise errors.HostNotFound(f'There is no host {host}{report}')
    held = claim_queries.listing(conn, host)
    for node in nodes:
        if refused:
            node['refused_reports'] = refused
        if node.get('status') == 'disabled':
            reason = node.get('disabled_reason')
            node['disabled'] = event_log.disabling(conn, host, reason)
        node['claims'] = [
            {name: row[name] for name in _CLAIM}
            for row in held
            if row['node'] == node['hypervisor_hostname']
        ]
    return nodes
