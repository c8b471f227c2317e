"""Reads hosts for lists: a few columns, and no document for each host.

Stateless: any thread may call it with a connection of its own. 50,000 hosts
take a second; their whole documents would take ten times as long.
"""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.store import schema
from scheduler_service.store.reading import loading

_HOSTS = schema.hosts.c
_OFFERED = schema.inventories.c
_NOTHING: tuple[dict[str, str], float | None] = ({}, None)


class Filter(NamedTuple):
    """Which hosts are wanted; what is None or empty does not count.

    :ivar zone: name of an availability zone
    :ivar aggregate: id or name
    :ivar state: up or down
    :ivar status: enabled or disabled
    :ivar pattern: of service hosts, with ``*`` and ``?``
    """

    zone: str | None = None
    aggregate: str | None = None
    state: str | None = None
    status: str | None = None
    pattern: str | None = None


class Membership(NamedTuple):
    """What aggregates say about a service host.

    :ivar zones: names of its availability zones
    :ivar aggregates: names of its aggregates
    :ivar ids: their ids, as text
    """

    zones: set[str]
    aggregates: list[str]
    ids: list[str]


def memberships(conn: Connection) -> Callable[[str], Membership]:
    """Return a function that returns the membership of a service host."""
    found: dict[str, Membership] = {}
    for aggregate in loading.aggregates(conn):
        zones = aggregate.zones
        for host in aggregate.hosts:
            of_host = found.setdefault(host, Membership(set(), [], []))
            of_host.aggregates.append(aggregate.name)
            of_host.ids.append(str(aggregate.id))
            of_host.zones.update(zones)
    none = Membership(set(), [], [])
    return lambda host: found.get(host, none)


def rows(
    conn: Connection,
    wanted: Filter,
    ratio_of: Mapping[str, float],
    default_zone: str,
) -> Iterator[dict[str, Any]]:
    """Yield the wanted hosts, by their names.

    ``used`` is the part in use of what may be allocated of the standard
    class that is fullest, in percent.

    :param ratio_of: allocation ratios of hosts without one, by class
    :param default_zone: of hosts whose aggregates have none
    """
    member = memberships(conn)
    counts = loading.instance_counts(conn)
    used = _use(conn, ratio_of)
    matches = _name_matcher(wanted.pattern)
    for row in conn.execute(_query(wanted)).all():
        of_host = member(row.host)
        zones = of_host.zones or {default_zone}
        if not matches(row.host) or not _is_member(wanted, zones, of_host):
            continue
        texts, percent = used.get(row.id, _NOTHING)
        instances = row.instances_other + counts.get((row.host, row.node), 0)
        yield {
            'host': row.host,
            'node': row.node,
            'zone': ', '.join(sorted(zones)),
            'status': row.status,
            'state': row.state,
            'vcpus': texts.get('VCPU', '0/0'),
            'memory_mb': texts.get('MEMORY_MB', '0/0'),
            'local_gb': texts.get('DISK_GB', '0/0'),
            'used': percent,
            'instances': instances,
            'aggregates': of_host.aggregates,
            'disabled_reason': row.disabled_reason,
        }


def _query(wanted: Filter) -> Any:
    query = sa.select(
        _HOSTS.id,
        _HOSTS.host,
        _HOSTS.node,
        _HOSTS.status,
        _HOSTS.state,
        _HOSTS.instances_other,
        _HOSTS.disabled_reason,
    ).order_by(_HOSTS.host, _HOSTS.node)
    if wanted.state:
        query = query.where(_HOSTS.state == wanted.state)
    if wanted.status:
        query = query.where(_HOSTS.status == wanted.status)
    return query


def _use(
    conn: Connection, ratio_of: Mapping[str, float]
) -> Mapping[int, tuple[dict[str, str], float | None]]:
    """Return use and total by class, and the fullest in percent, by id."""
    query = sa.select(
        _OFFERED.host_id,
        _OFFERED.resource_class,
        _OFFERED.used,
        _OFFERED.total,
        _OFFERED.allocation_ratio,
    ).where(_OFFERED.resource_class.in_(STANDARD_CLASSES))
    texts: dict[int, dict[str, str]] = defaultdict(dict)
    most: dict[int, float] = {}
    for host_id, name, used, total, ratio in conn.execute(query).all():
        texts[host_id][name] = f'{used}/{total}'
        limit = total * (ratio or ratio_of[name])
        if limit > 0 and used / limit > most.get(host_id, -1.0):
            most[host_id] = used / limit
    return {
        host_id: (
            found,
            round(most[host_id] * 100, 1) if host_id in most else None,
        )
        for host_id, found in texts.items()
    }


def _name_matcher(pattern: str | None) -> Callable[[str], Any]:
    if not pattern:
        return lambda name: True
    return re.compile(fnmatch.translate(pattern)).match


def _is_member(wanted: Filter, zones: set[str], member: Membership) -> bool:
    if wanted.zone and wanted.zone not in zones:
        return False
    if not wanted.aggregate:
        return True
    return (
        wanted.aggregate in member.aggregates or wanted.aggregate in member.ids
    )
