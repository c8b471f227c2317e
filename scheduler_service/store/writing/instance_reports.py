"""Applies which instances hosts report to have, or not to have any more.

Stateless: runs on the thread that owns the writing transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from scheduler_service.model import Instance
from scheduler_service.store import schema
from scheduler_service.store.claims import (
    lifecycle,
    outcomes,
    placement_records,
)
from scheduler_service.store.connection import Writer
from scheduler_service.store.reading import loading
from scheduler_service.store.writing import instances as instance_rows


def put(writer: Writer, instances: Sequence[Instance]) -> int:
    """Write instances that hosts report; return how many changed.

    A claim of the instance on that host is confirmed. An instance that the
    store has on another host, without a move to this one, is taken to be
    where it is reported: its allocations are released, and from then on the
    host's own figures count its use.
    """
    newest = {one.uuid: one for one in instances}
    # One that is claimed after this is not known yet: to add it then fails.
    known = lifecycle.lock(writer.conn, newest)
    confirmed = lifecycle.confirm(
        writer, {uuid: one.host for uuid, one in newest.items()}
    )
    if confirmed:
        placement_records.forget(writer.conn, confirmed)
    stored = {
        one.uuid: one
        for one, _ in loading.instance_documents(writer.conn, known)
    }
    _relocate(
        writer,
        {
            uuid: one
            for uuid, one in newest.items()
            if uuid in stored and stored[uuid].host != one.host
        },
    )
    differ = [
        merged
        for uuid, one in newest.items()
        if uuid in stored
        and (merged := _merged(stored[uuid], one)) != stored[uuid]
    ]
    new = [one for uuid, one in newest.items() if uuid not in stored]
    instance_rows.change(writer, differ)
    if new:
        instance_rows.add(writer, new)
    return len({*confirmed, *(one.uuid for one in differ + new)})


def remove(writer: Writer, gone: Mapping[str, Collection[str]]) -> list[str]:
    """Apply that hosts do not have instances any more.

    :param gone: service host -> instances
    :return: the instances that this changed
    """
    changed: list[str] = []
    for host in sorted(gone):
        changed += lifecycle.remove_from_host(writer, host, sorted(gone[host]))
    return changed


def sync(writer: Writer, host: str, uuids: Collection[str]) -> list[str]:
    """Apply that a host has these instances and no others.

    An instance that is claimed there and was never reported may still be
    starting, and stays.

    :return: the instances that this changed
    """
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.host == host, table.c.state != 'claimed'
    )
    here = set(writer.conn.execute(query).scalars())
    gone = sorted(here - {*uuids})
    changed = lifecycle.remove_from_host(
        writer, host, gone, starting_stay=True
    )
    changed += lifecycle.confirm(writer, dict.fromkeys(uuids, host))
    known = sa.select(table.c.uuid).where(table.c.uuid.in_(sorted(uuids)))
    stored = set(writer.conn.execute(known).scalars())
    new = [Instance(uuid=uuid, host=host) for uuid in {*uuids} - stored]
    if new:
        instance_rows.add(writer, new)
    return sorted({*changed, *(one.uuid for one in new)})


def _relocate(writer: Writer, astray: Mapping[str, Instance]) -> None:
    """Release what instances hold on hosts where they are not."""
    if not astray:
        return
    placement_records.forget(writer.conn, sorted(astray))
    lifecycle.drop_moves(writer, sorted(astray))
    lifecycle.release_allocations(writer, sorted(astray))
    outcomes.keep_placements(writer, sorted(astray), moving=False)
    table = schema.instances
    writer.conn.execute(
        sa.update(table)
        .where(table.c.uuid.in_(sorted(astray)))
        .values(state='reported', placement=None, idempotency_key=None)
    )


def _merged(stored: Instance, reported: Instance) -> Instance:
    """Return the report of an instance, completed by what is stored.

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
