"""Applies what hosts report of themselves to their rows, in bulk.

Stateless: runs on the thread that owns the writing transaction. A host's
figures of use count all its instances. Those that hold a claim are counted
by the claim already, so what they hold is subtracted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import STANDARD_FIELDS, Host, HostReport, Resource
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer, in_chunks, next_number
from scheduler_service.store.reading import loading
from scheduler_service.store.writing import hosts as host_rows

_CHUNK = 500
Key = tuple[str, str]
# Fields that change with every report; no other row depends on them.
_LOAD_FIELDS = frozenset(
    (
        'vcpus_used',
        'memory_mb_used',
        'local_gb_used',
        'disk_available_least',
        'num_io_ops',
        'num_instances',
        'state',
    )
)


class _Held(msgspec.Struct):
    """What claims hold of one host.

    :ivar counted: resource class -> what the host's own figures include
    :ivar coming: resource class -> what they do not include yet
    :ivar instances: how many instances of the host are in the store
    """

    counted: Counter[str] = msgspec.field(default_factory=Counter)
    coming: Counter[str] = msgspec.field(default_factory=Counter)
    instances: int = 0


def write(writer: Writer, reports: Sequence[HostReport]) -> dict[str, int]:
    """Write what hosts report; hosts that are not known yet are added.

    :return: how many hosts were ``added``, ``changed`` and the ``same``
    """
    conn = writer.conn
    by_key = {(one.host, one.node): one for one in reports}
    _confirm_listed(writer, reports)
    ids = _ids(conn, by_key)
    if len(ids) < len(by_key):
        # Lock: concurrent reports may add the same hosts.
        next_number(conn, 'host_id', 0)
        ids = _ids(conn, by_key)
    new = [one for key, one in by_key.items() if key not in ids]
    if new:
        last = next_number(conn, 'host_id', len(new))
        fresh = [one.as_host() for one in new]
        numbered = list(enumerate(fresh, last - len(new) + 1))
        host_rows.add(writer, numbered)
    known = {ids[key]: by_key[key] for key in by_key if key in ids}
    stored = loading.hosts(conn, known, reported=True)
    held = _held(conn, known)
    load: list[tuple[int, Host]] = []
    whole: list[tuple[int, Host]] = []
    for store_id, host in stored.items():
        report = known[store_id]
        reported = _as_stored(host, report, held[store_id])
        if reported == host:
            continue
        only_load = report.changes.keys() <= _LOAD_FIELDS
        (load if only_load else whole).append((store_id, reported))
    if whole:
        host_rows.change(writer, whole)
    if load:
        host_rows.change_load(writer, load)
    changed = len(load) + len(whole)
    return {
        'added': len(new),
        'changed': changed,
        'same': len(stored) - changed,
    }


def _confirm_listed(writer: Writer, reports: Sequence[HostReport]) -> None:
    seen = {uuid: one.host for one in reports for uuid in one.instances or ()}
    if seen:
        lifecycle.confirm(writer, seen)


def _ids(conn: Connection, keys: Mapping[Key, Any]) -> dict[Key, int]:
    table = schema.hosts
    found: dict[Key, int] = {}
    for part in in_chunks(sorted({host for host, _ in keys}), _CHUNK):
        query = sa.select(table.c.id, table.c.host, table.c.node)
        for row in conn.execute(query.where(table.c.host.in_(part))):
            if (row.host, row.node) in keys:
                found[row.host, row.node] = row.id
    return found


def _held(
    conn: Connection, reports: Mapping[int, HostReport]
) -> dict[int, _Held]:
    """Return what claims hold of hosts, by host id."""
    found: dict[int, _Held] = defaultdict(_Held)
    hosts, held, inst = schema.hosts, schema.allocations, schema.instances
    for part in in_chunks(reports, _CHUNK):
        query = (
            sa.select(held, inst.c.state, inst.c.host, hosts.c.host)
            .join(hosts, hosts.c.id == held.c.host_id)
            .outerjoin(inst, inst.c.uuid == held.c.consumer_uuid)
            .where(held.c.host_id.in_(part))
        )
        for uuid, host_id, name, amount, state, host, own in conn.execute(
            query
        ):
            listed = reports[host_id].instances
            included = state == 'confirmed' and host == own
            if listed is not None:
                included = uuid in listed
            included = included or uuid in (reports[host_id].counted or ())
            total = found[host_id]
            (total.counted if included else total.coming)[name] += amount
        counted = (
            sa.select(hosts.c.id, sa.func.count())
            .join(
                inst,
                (inst.c.host == hosts.c.host) & (inst.c.node == hosts.c.node),
            )
            .where(hosts.c.id.in_(part), inst.c.state != 'claimed')
            .group_by(hosts.c.id)
        )
        for host_id, count in conn.execute(counted):
            found[host_id].instances = count
    return found


def _as_stored(host: Host, report: HostReport, held: _Held) -> Host:
    """Return a host's new document, with use that excludes its claims.

    :param host: as stored, with use that excludes its claims
    """
    changes: dict[str, Any] = dict(report.changes)
    # The uuid is given when a host is added and never changes.
    changes.pop('uuid', None)
    for name, (_, used, _ratio) in STANDARD_FIELDS.items():
        if used in changes:
            changes[used] = max(changes[used] - held.counted[name], 0)
    if 'resources' in changes:
        changes['resources'] = {
            name: _less(offer, held.counted[name])
            for name, offer in changes['resources'].items()
        }
    if changes.get('disk_available_least') is not None:
        changes['disk_available_least'] -= held.coming['DISK_GB']
    if 'num_instances' in changes:
        stated = changes['num_instances']
        changes['num_instances'] = (
            0 if stated is None else stated - held.instances
        )
    if 'traits' in changes:
        changes['traits'] = sorted(set(changes['traits']))
    return msgspec.structs.replace(host, **changes)


def _less(offer: Resource, counted: int) -> Resource:
    return msgspec.structs.replace(offer, used=max(offer.used - counted, 0))
