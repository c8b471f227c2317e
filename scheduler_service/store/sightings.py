"""Which instances hosts say they have, and have not any more."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from scheduler_service.model import Instance
from scheduler_service.store import lifecycle, loading, schema, writing
from scheduler_service.store.connection import Writer


def put(writer: Writer, instances: Sequence[Instance]) -> int:
    """Note instances where their hosts report them; return how many changed.

    A claim there is confirmed. One that is elsewhere without a move that
    ends here is believed to be here: what it held elsewhere is given back,
    and its use is for the host to report.
    """
    newest = {one.uuid: one for one in instances}
    confirmed = lifecycle.confirm(
        writer, {uuid: one.host for uuid, one in newest.items()}
    )
    stored = {
        one.uuid: one
        for one, _ in loading.instance_documents(writer.conn, list(newest))
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
    writing.change_instances(writer, differ)
    if new:
        writing.add_instances(writer, new, time.time())
    return len({*confirmed, *(one.uuid for one in differ + new)})


def remove(writer: Writer, gone: Mapping[str, Collection[str]]) -> list[str]:
    """Note instances that hosts have not any more; return those changed.

    :param gone: service host -> instances
    """
    changed: list[str] = []
    for host in sorted(gone):
        changed += lifecycle.leave(writer, host, sorted(gone[host]))
    return changed


def sync(writer: Writer, host: str, uuids: Collection[str]) -> list[str]:
    """Note that a host has these instances and no others.

    One that was claimed there and never reported may be on its way still,
    and stays.

    :return: the instances that this changed
    """
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.host == host, table.c.state != 'claimed'
    )
    here = set(writer.conn.execute(query).scalars())
    changed = lifecycle.leave(writer, host, sorted(here - {*uuids}))
    changed += lifecycle.confirm(writer, dict.fromkeys(uuids, host))
    known = sa.select(table.c.uuid).where(table.c.uuid.in_(sorted(uuids)))
    there = set(writer.conn.execute(known).scalars())
    new = [Instance(uuid=one, host=host) for one in {*uuids} - there]
    if new:
        writing.add_instances(writer, new, time.time())
    return sorted({*changed, *(one.uuid for one in new)})


def _relocate(writer: Writer, astray: Mapping[str, Instance]) -> None:
    """Give back what instances hold elsewhere than where they are."""
    if not astray:
        return
    lifecycle.drop_moves(writer, sorted(astray))
    lifecycle.give_back(writer, sorted(astray))
    table = schema.instances
    writer.conn.execute(
        sa.update(table)
        .where(table.c.uuid.in_(sorted(astray)))
        .values(state='reported', placement=None)
    )


def _merged(stored: Instance, told: Instance) -> Instance:
    """Return what is told of an instance, with what only the store knows.

    A host that reports a claimed instance need not repeat who asked for it.
    """
    kept = {}
    for name in ('project_id', 'image_id', 'availability_zone'):
        if getattr(told, name) is None:
            kept[name] = getattr(stored, name)
    for name in ('image_meta', 'flavor'):
        if not getattr(told, name):
            kept[name] = getattr(stored, name)
    if told.host == stored.host and told.hypervisor_hostname == told.host:
        kept['hypervisor_hostname'] = stored.hypervisor_hostname
    return msgspec.structs.replace(told, **kept)
