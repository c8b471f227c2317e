"""Rows of hosts, with their inventories and traits, and reports of hosts.

The use that a host reports includes all its instances. Instances that hold a
claim count by the claim already, so the claim's amounts are subtracted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import (
    NESTED_FIELDS,
    STANDARD_FIELDS,
    Aggregate,
    Host,
    HostReport,
    Resource,
    documents,
)
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer, next_number
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.loading import HOST_COLUMNS
from scheduler_service.store.rows import delete, insert, select_in, update
from scheduler_service.store.writing import aggregates, inventories

_HOSTS, _OFFERED = schema.hosts, schema.inventories
_encode = msgspec.json.Encoder(order='deterministic').encode
# Fields that change with every report; no other row depends on them.
_LOAD_FIELDS = {
    'disk_available_least',
    'num_io_ops',
    'num_instances',
    'state',
    *(used for _, used, _ in STANDARD_FIELDS.values()),
}


def add(writer: Writer, hosts: Sequence[tuple[int, Host]]) -> None:
    """Add hosts; their use is that of their documents.

    :param hosts: (store id, document) pairs
    """
    insert(writer.conn, _HOSTS, (_host_row(*pair) for pair in hosts))
    offered = (row for pair in hosts for row in _inventory_rows(*pair))
    insert(writer.conn, _OFFERED, offered)
    _insert_traits(writer.conn, hosts)
    writer.touched.hosts += [store_id for store_id, _ in hosts]


def change(writer: Writer, hosts: Sequence[tuple[int, Host]]) -> None:
    """Write hosts that changed; their claims stay allocated.

    :param hosts: (store id, document) pairs; ``used`` without the claims
    """
    if not hosts:
        return
    conn = writer.conn
    update(conn, _HOSTS, 'id', [_host_row(*pair) for pair in hosts])
    ids = [store_id for store_id, _ in hosts]
    inventories.change(
        conn, ids, (row for pair in hosts for row in _inventory_rows(*pair))
    )
    delete(conn, schema.traits.c.host_id, ids)
    _insert_traits(conn, hosts)
    writer.touched.hosts += ids


def _insert_traits(
    conn: Connection, hosts: Sequence[tuple[int, Host]]
) -> None:
    rows = ({'host_id': i, 'name': t} for i, h in hosts for t in h.traits)
    insert(conn, schema.traits, rows)


def change_load(writer: Writer, hosts: Sequence[tuple[int, Host]]) -> None:
    """Write only the columns that change often: use, counts, and state.

    :param hosts: (store id, document) pairs; ``used`` without the claims
    """
    if not hosts:
        return
    ordered = sorted(hosts, key=lambda pair: pair[0])
    update(
        writer.conn,
        _HOSTS,
        'id',
        [
            {
                'id': store_id,
                'num_io_ops': host.num_io_ops,
                'instances_other': host.num_instances or 0,
                'state': host.state,
            }
            for store_id, host in ordered
        ],
    )
    inventories.update(
        writer.conn,
        [row for pair in ordered for row in _inventory_rows(*pair)],
        ('available_least',),
    )
    writer.touched.load += [store_id for store_id, _ in ordered]


def remove(writer: Writer, ids: Sequence[int]) -> None:
    """Remove hosts that hold no claims.

    :raises Conflict: a host still holds claims; the transaction has to be
        rolled back
    """
    conn, held = writer.conn, schema.allocations.c
    # Inventories first: claims lock them, so that no further claim is made.
    delete(conn, _OFFERED.c.host_id, ids)
    busy = (
        sa.select(
            _HOSTS.c.host, sa.func.count(sa.distinct(held.consumer_uuid))
        )
        .join(schema.allocations, held.host_id == _HOSTS.c.id)
        .group_by(_HOSTS.c.host)
    )
    for host, claims in select_in(conn, busy, _HOSTS.c.id, ids):
        raise errors.Conflict(
            f'Host {host} still holds the claims of {claims} instances: '
            'release them first',
            host=host,
            claims=claims,
        )
    names = select_in(conn, sa.select(_HOSTS.c.host), _HOSTS.c.id, ids)
    delete(conn, schema.refused_reports.c.host, [row.host for row in names])
    delete(conn, schema.traits.c.host_id, ids)
    delete(conn, _HOSTS.c.id, ids)
    writer.touched.hosts_gone += ids


def set_status(
    writer: Writer, host: str, enabled: bool, reason: str | None = None
) -> list[tuple[str, str | None]]:
    """Enable or disable all nodes of a service host.

    :return: the status and the reason that each node had
    :raises HostNotFound: there is no such host
    :raises InvalidRequest: the reason is too long
    """
    documents.host_report({'host': host, 'disabled_reason': reason})
    ids = _nodes_of(writer.conn, host)
    query = sa.select(_HOSTS.c.status, _HOSTS.c.disabled_reason)
    before = select_in(writer.conn, query, _HOSTS.c.id, ids)
    writer.conn.execute(
        sa.update(_HOSTS)
        .where(_HOSTS.c.id.in_(ids))
        .values(
            status='enabled' if enabled else 'disabled',
            disabled_reason=None if enabled else reason,
        )
    )
    writer.touched.hosts += ids
    return [(row.status, row.disabled_reason) for row in before]


def remove_service_host(writer: Writer, host: str) -> list[Aggregate]:
    """Remove all nodes of a service host, also from its aggregates.

    :return: the aggregates before the change
    :raises HostNotFound: the host does not exist
    :raises Conflict: a node still holds claims
    """
    # Lock: the host could join an aggregate meanwhile.
    next_number(writer.conn, 'host_id', 0)
    remove(writer, _nodes_of(writer.conn, host))
    return aggregates.remove_host(writer, host)


def _nodes_of(conn: Connection, host: str) -> list[int]:
    """Return the ids of a service host's nodes.

    :raises HostNotFound: there is no such host
    """
    query = sa.select(_HOSTS.c.id).where(_HOSTS.c.host == host)
    ids = list(conn.execute(query).scalars())
    if not ids:
        raise errors.HostNotFound(f'There is no host {host}', host=host)
    return ids


def _host_row(store_id: int, host: Host) -> dict[str, Any]:
    nested = {
        name: value
        for name in NESTED_FIELDS
        if (value := getattr(host, name)) not in ([], {})
    }
    return {
        **{name: getattr(host, name) for name in HOST_COLUMNS},
        'id': store_id,
        'node': host.hypervisor_hostname,
        'instances_other': host.num_instances or 0,
        'document': _encode(nested).decode(),
    }


def _inventory_rows(store_id: int, host: Host) -> Iterator[dict[str, Any]]:
    for name, (total, used, ratio) in STANDARD_FIELDS.items():
        units = host.units.get(name)
        offer = Resource(
            total=getattr(host, total),
            used=getattr(host, used),
            **(msgspec.structs.asdict(units) if units else {}),
        )
        least = host.disk_available_least if name == 'DISK_GB' else None
        row = inventories.row(store_id, name, offer)
        yield {
            **row,
            'allocation_ratio': getattr(host, ratio),
            'available_least': least,
        }
    for name, offer in host.resources.items():
        yield inventories.row(store_id, name, offer)


class Held(msgspec.Struct):
    """Amounts of the claims on a host.

    :ivar counted: resource class -> amount that the host's report includes
    :ivar coming: resource class -> amount that it does not include yet
    :ivar instances: number of the host's instances in the store
    """

    counted: Counter[str] = msgspec.field(default_factory=Counter)
    coming: Counter[str] = msgspec.field(default_factory=Counter)
    instances: int = 0


def report(writer: Writer, reports: Sequence[HostReport]) -> dict[str, int]:
    """Write reports of hosts; hosts that are not stored are added.

    :return: how many hosts were ``added``, ``changed`` and the ``same``
    """
    conn = writer.conn
    by_key = {(item.host, item.node): item for item in reports}
    reported_on = {
        uuid: item.host for item in reports for uuid in item.instances or ()
    }
    if reported_on:
        lifecycle.confirm(writer, reported_on)
    ids = _ids(conn, by_key)
    if len(ids) < len(by_key):
        # Lock: concurrent reports may add the same hosts.
        next_number(conn, 'host_id', 0)
        ids = _ids(conn, by_key)
    new = [item.as_host() for key, item in by_key.items() if key not in ids]
    if new:
        last = next_number(conn, 'host_id', len(new))
        add(writer, list(enumerate(new, last - len(new) + 1)))
    by_id = {store_id: by_key[key] for key, store_id in ids.items()}
    stored = loading.hosts(conn, by_id, reported=True)
    held = _held(conn, by_id)
    load: list[tuple[int, Host]] = []
    whole: list[tuple[int, Host]] = []
    for store_id, host in stored.items():
        changes = by_id[store_id].changes
        reported = as_stored(host, changes, held[store_id])
        if reported != host:
            only_load = changes.keys() <= _LOAD_FIELDS
            (load if only_load else whole).append((store_id, reported))
    change(writer, whole)
    change_load(writer, load)
    changed = len(load) + len(whole)
    same = len(stored) - changed
    return {'added': len(new), 'changed': changed, 'same': same}


def _ids(
    conn: Connection, keys: Mapping[tuple[str, str], Any]
) -> dict[tuple[str, str], int]:
    """Return the store ids of the stored (host, node) pairs; lock them.

    Reports of different fields come at the same time, and each writes all.
    """
    query = (
        sa.select(_HOSTS.c.id, _HOSTS.c.host, _HOSTS.c.node)
        .order_by(_HOSTS.c.id)
        .with_for_update(key_share=True)
    )
    names = sorted({host for host, _ in keys})
    return {
        (row.host, row.node): row.id
        for row in select_in(conn, query, _HOSTS.c.host, names)
        if (row.host, row.node) in keys
    }


def _held(
    conn: Connection, reports: Mapping[int, HostReport]
) -> dict[int, Held]:
    totals: dict[int, Held] = defaultdict(Held)
    held, inst = schema.allocations, schema.instances
    claimed = (
        sa.select(held, inst.c.state, inst.c.kind, inst.c.host, _HOSTS.c.host)
        .join(_HOSTS, _HOSTS.c.id == held.c.host_id)
        .outerjoin(inst, inst.c.uuid == held.c.consumer_uuid)
    )
    for uuid, host_id, name, amount, state, kind, host, own in select_in(
        conn, claimed, held.c.host_id, reports
    ):
        report = reports[host_id]
        if kind == 'pod':
            # A host reports what its instances use.
            included = False
        elif report.instances is None:
            included = state == 'confirmed' and host == own
        else:
            included = uuid in report.instances
        included = included or uuid in (report.counted or ())
        total = totals[host_id]
        (total.counted if included else total.coming)[name] += amount
    same = (inst.c.host == _HOSTS.c.host) & (inst.c.node == _HOSTS.c.node)
    counted = (
        sa.select(_HOSTS.c.id, sa.func.count())
        .join(inst, same)
        .where(inst.c.state != 'claimed', loading.IS_INSTANCE)
        .group_by(_HOSTS.c.id)
    )
    for host_id, count in select_in(conn, counted, _HOSTS.c.id, reports):
        totals[host_id].instances = count
    return totals


def as_stored(host: Host, reported: Mapping[str, Any], held: Held) -> Host:
    """Return a host's new document, with use that excludes its claims.

    :param host: as stored, with use that excludes its claims
    :param reported: field -> value
    """
    changes: dict[str, Any] = dict(reported)
    # A host's uuid never changes after it was added.
    changes.pop('uuid', None)
    for name, (_, used, _ratio) in STANDARD_FIELDS.items():
        if used in changes:
            changes[used] = max(changes[used] - held.counted[name], 0)
    if 'resources' in changes:
        changes['resources'] = inventories.without(
            changes['resources'], held.counted
        )
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
