"""The life of a claim after it was made: confirmed, moved, given back.

Every verb runs in a writing transaction, takes the rows of the instances
first, in the order of their uuids, and changes nothing when it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import claim_sql, groups, rows, schema
from scheduler_service.store.connection import Writer, in_chunks

_CHUNK = 500


def release(writer: Writer, consumers: Sequence[str]) -> list[str]:
    """Give back what consumers claimed; return those that held something."""
    released: set[str] = set()
    for part in in_chunks(consumers, _CHUNK):
        released.update(_release(writer, part))
    return sorted(released)


def _release(writer: Writer, consumers: Sequence[str]) -> set[str]:
    conn = writer.conn
    there = _locked(conn, consumers)
    held = give_back(writer, consumers)
    gone = sorted(u for u, row in there.items() if row.state != 'reported')
    moves = schema.moves
    moving = moves.c.instance_uuid.in_(consumers)
    for row in conn.execute(sa.select(moves).where(moving)):
        writer.touched.load.append(row.host_id)
        writer.touched.instances.append(row.instance_uuid)
    conn.execute(sa.delete(moves).where(moving))
    _forget(writer, gone)
    for host in {there[uuid].host for uuid in gone}:
        _touch_host(writer, host)
    return held.union(gone)


def promised(conn: Connection, instances: Sequence[str]) -> dict[str, str]:
    """Return the service host that each claim is to be confirmed by.

    Of an instance that moves it is where it moves to.
    """
    found: dict[str, str] = {}
    for table, key in (
        (schema.instances, schema.instances.c.uuid),
        (schema.moves, schema.moves.c.instance_uuid),
    ):
        for part in in_chunks(instances, _CHUNK):
            query = sa.select(key, table.c.host).where(key.in_(part))
            found.update((uuid, host) for uuid, host in conn.execute(query))
    return found


def confirm(writer: Writer, seen: Mapping[str, str]) -> list[str]:
    """Note that hosts have the instances that they were promised.

    An instance that was to move there has moved: what it held on its old
    host is given back.

    :param seen: instance -> service host that has it
    :return: the instances whose claim was confirmed by this
    """
    conn = writer.conn
    there = _locked(conn, list(seen))
    table = schema.instances
    arrived = _arrivals(conn, seen)
    for uuid, move in arrived.items():
        if uuid in there:
            _settle(writer, there[uuid], move)
    fresh = [
        uuid
        for uuid, row in there.items()
        if (uuid in arrived and row.state != 'confirmed')
        or (row.state == 'claimed' and row.host == seen[uuid])
    ]
    if fresh:
        conn.execute(
            sa.update(table)
            .where(table.c.uuid.in_(fresh))
            .values(state='confirmed')
        )
        writer.touched.instances += fresh
    return sorted({*fresh, *(arrived.keys() & there.keys())})


def drop_moves(writer: Writer, instances: Sequence[str]) -> list[str]:
    """Give back the second claims of instances that do not move after all.

    :return: the instances that were to move
    """
    conn = writer.conn
    _locked(conn, instances)
    table = schema.moves
    mine = table.c.instance_uuid.in_(instances)
    found = conn.execute(sa.select(table).where(mine)).all()
    for move in found:
        give_back(writer, [move.instance_uuid], host_id=move.host_id)
        writer.touched.load.append(move.host_id)
    conn.execute(sa.delete(table).where(mine))
    dropped = sorted(move.instance_uuid for move in found)
    writer.touched.instances += dropped
    return dropped


def leave(writer: Writer, host: str, instances: Sequence[str]) -> list[str]:
    """Note that a host has not got instances any more.

    One that moves there does not; one that moves away is on its way still,
    to the place that it was promised; any other is gone.

    :return: the instances that this changed
    """
    conn = writer.conn
    there = _locked(conn, instances)
    table = schema.moves
    moves = {
        row.instance_uuid: row
        for row in conn.execute(
            sa.select(table).where(table.c.instance_uuid.in_(instances))
        )
    }
    dropped = [uuid for uuid, move in moves.items() if move.host == host]
    drop_moves(writer, dropped)
    changed = set(dropped)
    for uuid, row in there.items():
        if row.host != host:
            continue
        changed.add(uuid)
        move = moves.get(uuid)
        if move is not None and move.host != host:
            _settle(writer, row, move)
        else:
            give_back(writer, [uuid])
            _forget(writer, [uuid])
            _touch_host(writer, host)
    return sorted(changed)


def any_to_expire(conn: Connection, before: float) -> bool:
    """Whether :func:`expire` would find something."""
    return bool(_expiring(conn, before, 1)) or bool(_late(conn, before))


def _expiring(conn: Connection, before: float, limit: int) -> list[str]:
    table = schema.instances
    query = sa.select(table.c.uuid).where(
        table.c.state == 'claimed', table.c.created_at < before
    )
    return list(conn.execute(query.limit(limit)).scalars())


def _late(conn: Connection, before: float) -> list[str]:
    table = schema.moves
    query = sa.select(table.c.instance_uuid)
    late = conn.execute(query.where(table.c.created_at < before))
    return list(late.scalars())


def expire(writer: Writer, before: float) -> dict[str, int]:
    """Give back claims and moves made before a time and never confirmed.

    :param before: seconds since the epoch
    :return: how many ``claims`` and ``moves``
    """
    conn = writer.conn
    dropped = drop_moves(writer, _late(conn, before))
    found = _expiring(conn, before, _CHUNK)
    # One that was confirmed since it was found is not in the locked rows.
    there = _locked(conn, found)
    still = [u for u, row in there.items() if row.state == 'claimed']
    return {'claims': len(release(writer, still)), 'moves': len(dropped)}


def give_back(
    writer: Writer, consumers: Sequence[str], host_id: int | None = None
) -> set[str]:
    """Take allocations away; return the consumers that had some.

    :param host_id: on this host alone
    """
    conn = writer.conn
    table = schema.allocations
    mine: Any = table.c.consumer_uuid.in_(consumers)
    if host_id is not None:
        mine &= table.c.host_id == host_id
    held = conn.execute(
        sa.select(table)
        .where(mine)
        .order_by(table.c.host_id, table.c.resource_class)
        .with_for_update()
    ).all()
    if held:
        _lessen(conn, held)
        conn.execute(sa.delete(table).where(mine))
        writer.touched.load += sorted({row.host_id for row in held})
    return {row.consumer_uuid for row in held}


def _lessen(conn: Connection, held: Sequence[Any]) -> None:
    """Take amounts off what is used of inventories, in fixed order."""
    amounts: dict[tuple[int, str], int] = {}
    for row in held:
        key = row.host_id, row.resource_class
        amounts[key] = amounts.get(key, 0) - row.amount
    asked = [
        (host, name, amount, None, None)
        for (host, name), amount in sorted(amounts.items())
    ]
    dialect = rows.dialect_of(conn)
    conn.execute(
        claim_sql.moving(dialect), claim_sql.parameters(dialect, asked)
    )


def _locked(conn: Connection, uuids: Iterable[str]) -> dict[str, Any]:
    """Return rows of instances by uuid, locked in their order."""
    table = schema.instances
    found: dict[str, Any] = {}
    columns = table.c.uuid, table.c.host, table.c.node, table.c.state
    for part in in_chunks(sorted(set(uuids)), _CHUNK):
        query = sa.select(*columns).where(table.c.uuid.in_(part))
        locked = query.order_by(table.c.uuid).with_for_update()
        found.update((row.uuid, row) for row in conn.execute(locked))
    return found


def _arrivals(conn: Connection, seen: Mapping[str, str]) -> dict[str, Any]:
    """Return the moves whose instances are where they were to move."""
    table = schema.moves
    found: dict[str, Any] = {}
    for part in in_chunks(seen, _CHUNK):
        query = sa.select(table).where(table.c.instance_uuid.in_(part))
        for move in conn.execute(query):
            if seen[move.instance_uuid] == move.host:
                found[move.instance_uuid] = move
    return found


def _settle(writer: Writer, row: Any, move: Any) -> None:
    """Let an instance be where it moved to, and nowhere else."""
    conn = writer.conn
    table = schema.instances
    held = schema.allocations
    olds = conn.execute(
        sa.select(held.c.host_id)
        .distinct()
        .where(
            held.c.consumer_uuid == row.uuid, held.c.host_id != move.host_id
        )
    ).scalars()
    for old in sorted(olds):
        give_back(writer, [row.uuid], host_id=old)
    conn.execute(
        sa.update(table)
        .where(table.c.uuid == row.uuid)
        .values(
            host=move.host,
            node=move.node,
            state='claimed' if row.state == 'reported' else row.state,
            placement=move.placement,
            request_id=move.request_id,
            created_at=move.created_at,
        )
    )
    moves = schema.moves
    conn.execute(sa.delete(moves).where(moves.c.instance_uuid == row.uuid))
    writer.touched.instances.append(row.uuid)
    writer.touched.load.append(move.host_id)
    _touch_host(writer, row.host)


def _forget(writer: Writer, uuids: Sequence[str]) -> None:
    """Take instances out of the store and out of their groups."""
    if not uuids:
        return
    table = schema.instances
    groups.leave(writer, uuids)
    writer.conn.execute(sa.delete(table).where(table.c.uuid.in_(uuids)))
    writer.touched.instances_gone += uuids


def _touch_host(writer: Writer, host: str) -> None:
    """Say that the count of a service host's instances moved."""
    table = schema.hosts
    ids = sa.select(table.c.id).where(table.c.host == host)
    writer.touched.load += list(writer.conn.execute(ids).scalars())
