"""Rows of instances, and reports of hosts about their instances.

Claimed instances are written in ``claims``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler_service.model import Instance
from scheduler_service.store import schema
from scheduler_service.store.claims import (
    lifecycle,
    outcomes,
    stage_records,
)
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import (
    delete,
    document,
    insert,
    select_in,
    update,
)

_INSTANCES = schema.instances
# Fields of an instance that are parts of its document in the store.
_IN_DOCUMENT = (
    'image_id',
    'availability_zone',
    'task_state',
    'image_meta',
    'flavor',
)


def add(writer: Writer, instances: Sequence[Instance]) -> None:
    """Add instances that hosts report."""
    more = {'state': 'reported', 'request_id': None, 'placement': None}
    rows = ({**_row(i), 'uuid': i.uuid, **more} for i in instances)
    insert(writer.conn, _INSTANCES, rows)
    writer.touched.instances += [instance.uuid for instance in instances]
    lifecycle.touch_hosts(writer, {instance.host for instance in instances})


def change(writer: Writer, instances: Sequence[Instance]) -> None:
    """Write instances that differ."""
    if not instances:
        return
    uuids = [instance.uuid for instance in instances]
    rows = [{**_row(i), 'uuid': i.uuid} for i in instances]
    left = _hosts_of(writer, uuids)
    update(writer.conn, _INSTANCES, 'uuid', rows)
    writer.touched.instances += uuids
    lifecycle.touch_hosts(writer, left | {i.host for i in instances})


def remove(writer: Writer, uuids: Sequence[str]) -> None:
    """Remove instances that hosts no longer report, unless they are claimed.

    An instance may have been claimed since the caller read it.
    """
    locked = lifecycle.lock(writer.conn, uuids)
    uuids = [uuid for uuid, row in locked.items() if row.state == 'reported']
    hosts = _hosts_of(writer, uuids)
    delete(writer.conn, _INSTANCES.c.uuid, uuids)
    writer.touched.instances_gone += uuids
    lifecycle.touch_hosts(writer, hosts)


def _hosts_of(writer: Writer, uuids: Iterable[str]) -> set[str]:
    query, column = sa.select(_INSTANCES.c.host), _INSTANCES.c.uuid
    return {host for (host,) in select_in(writer.conn, query, column, uuids)}


def _row(instance: Instance) -> dict[str, Any]:
    extra = {name: getattr(instance, name) for name in _IN_DOCUMENT}
    return {
        'host': instance.host,
        'node': instance.hypervisor_hostname,
        'project_id': instance.project_id,
        'document': document(extra),
    }


def report(writer: Writer, instances: Sequence[Instance]) -> int:
    """Write instances that hosts report; return how many changed.

    A claim of the instance on that host is confirmed. An instance that is
    stored on another host, without a move, is taken to be where it is
    reported: its allocations are released, and from then on the host's report
    includes its use. So it is where its flavor is not any more what it was
    resized to on its host.
    """
    newest = {instance.uuid: instance for instance in instances}
    # Adding an instance that is claimed after the lock fails.
    locked = lifecycle.lock(writer.conn, newest)
    confirmed = lifecycle.confirm(
        writer,
        {uuid: instance.host for uuid, instance in newest.items()},
        documents=newest,
    )
    if confirmed:
        stage_records.take_over(writer.conn, confirmed)
    stored = {
        instance.uuid: instance
        for instance, _ in loading.instance_documents(writer.conn, locked)
    }
    here = [uuid for uuid in newest if uuid in stored]
    elsewhere = [u for u in here if stored[u].host != newest[u].host]
    _relocate(writer, {*elsewhere, *_reverted(writer, stored, newest)})
    merged = [_merged(stored[uuid], newest[uuid]) for uuid in here]
    differ = [
        instance for instance in merged if instance != stored[instance.uuid]
    ]
    new = [instance for uuid, instance in newest.items() if uuid not in stored]
    change(writer, differ)
    add(writer, new)
    return len({*confirmed, *(instance.uuid for instance in differ + new)})


def sync(writer: Writer, host: str, uuids: Collection[str]) -> list[str]:
    """Make these the only instances of a host.

    An instance that is claimed there and was never reported may still be
    starting, and stays.

    :return: the changed instances
    """
    uuid = _INSTANCES.c.uuid
    query = sa.select(uuid).where(
        _INSTANCES.c.host == host,
        _INSTANCES.c.state != 'claimed',
        loading.IS_INSTANCE,
    )
    here = set(writer.conn.execute(query).scalars())
    gone = sorted(here - {*uuids})
    changed = lifecycle.remove_from_host(
        writer, host, gone, starting_stay=True
    )
    changed += lifecycle.confirm(writer, dict.fromkeys(uuids, host))
    rows = select_in(writer.conn, sa.select(uuid), uuid, sorted(uuids))
    absent = {*uuids} - {row.uuid for row in rows}
    new = [Instance(uuid=instance, host=host) for instance in absent]
    add(writer, new)
    return sorted({*changed, *(instance.uuid for instance in new)})


def _reverted(
    writer: Writer,
    stored: Mapping[str, Instance],
    newest: Mapping[str, Instance],
) -> list[str]:
    """Return instances that lost the flavor of a resize on their host."""
    changed = {
        uuid: flavorid
        for uuid, instance in stored.items()
        if (flavorid := newest[uuid].flavor.get('flavorid'))
        and flavorid != instance.flavor.get('flavorid')
    }
    resized = lifecycle.resized(writer.conn, changed) if changed else {}
    return [u for u, flavorid in resized.items() if flavorid != changed[u]]


def _relocate(writer: Writer, uuids: Iterable[str]) -> None:
    """Release allocations of instances that are otherwise than claimed."""
    uuids = sorted(uuids)
    if not uuids:
        return
    stage_records.take_over(writer.conn, uuids)
    lifecycle.drop_moves(writer, uuids)
    lifecycle.release_allocations(writer, uuids)
    outcomes.keep_placements(writer, uuids, moving=False)
    writer.conn.execute(
        sa.update(_INSTANCES)
        .where(_INSTANCES.c.uuid.in_(uuids))
        .values(state='reported', placement=None, idempotency_key=None)
    )


def _merged(stored: Instance, reported: Instance) -> Instance:
    """Return the report of an instance, completed from the stored instance.

    A host that reports a claimed instance need not repeat its request.
    """
    kept = {}
    for name in ('project_id', 'image_id', 'availability_zone'):
        if getattr(reported, name) is None:
            kept[name] = getattr(stored, name)
    for name in ('image_meta', 'flavor'):
        if not getattr(reported, name):
            kept[name] = getattr(stored, name)
    if (
        reported.host == stored.host
        and reported.hypervisor_hostname == reported.host
    ):
        kept['hypervisor_hostname'] = stored.hypervisor_hostname
    return msgspec.structs.replace(reported, **kept)
