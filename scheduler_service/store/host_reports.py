"""What hosts report of themselves: state, use, and all else, in bulk.

A host's figures of use count the instances that it has. Those of them that
hold a claim are counted by the claim already, and are taken off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import STANDARD_FIELDS, Host, HostReport, Resource
from scheduler_service.store import host_rows, lifecycle, loading, schema
from scheduler_service.store.connection import Writer, in_chunks, next_number

_CHUNK = 500
Key = tuple[str, str]
# What moves with every report, and needs no rebuilding of anything.
_MOVING = frozenset(
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


class Held(msgspec.Struct):
    """What claims hold of one host.

    :ivar counted: resource class -> what the host's own figures count too
    :ivar coming: resource class -> what they cannot count yet
    :ivar instances: how many instances of the host the store knows
    """

    counted: Counter[str] = msgspec.field(default_factory=Counter)
    coming: Counter[str] = msgspec.field(default_factory=Counter)
    instances: int = 0


def write(writer: Writer, reports: Sequence[HostReport]) -> dict[str, int]:
    """Bring hosts to what they report; unknown ones are added.

    :return: how many were ``added``, ``changed`` and the ``same``
    """
    conn = writer.conn
    by_key = {(one.host, one.node): one for one in reports}
    _confirm_listed(writer, reports)
    ids = _ids(conn, by_key)
    if len(ids) < len(by_key):
        # Others may add the same hosts: one after the other.
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
        told = _as_stored(host, report, held[store_id])
        if told == host:
            continue
        moving = report.changes.keys() <= _MOVING
        (load if moving else whole).append((store_id, told))
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
) -> dict[int, Held]:
    """Return what claims hold of hosts, by host id."""
    found: dict[int, Held] = defaultdict(Held)
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
            there = state == 'confirmed' and host == own
            if listed is not None:
                there = uuid in listed
            one = found[host_id]
            (one.counted if there else one.coming)[name] += amount
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


def _as_stored(host: Host, report: HostReport, held: Held) -> Host:
    """Return a stored host, less claims, changed by what it reports."""
    changes: dict[str, Any] = dict(report.changes)
    # The name by which the store knows it stays.
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
        given = changes['num_instances']
        changes['num_instances'] = (
            0 if given is None else given - held.instances
        )
    if 'traits' in changes:
        changes['traits'] = sorted(set(changes['traits']))
    return msgspec.structs.replace(host, **changes)


def _less(offer: Resource, counted: int) -> Resource:
    return msgspec.structs.replace(offer, used=max(offer.used - counted, 0))
