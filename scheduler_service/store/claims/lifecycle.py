"""What happens to a claim after it was made: confirmed, moved, released.

Stateless: every function runs on the thread that owns the writing
transaction, locks the rows of the instances first, in the order of their
uuids, and changes nothing when it is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import rows, schema
from scheduler_service.store.claims import (
    claim_sql,
    group_policies,
    outcomes,
)
from scheduler_service.store.connection import Writer, in_chunks

# Gets the project of each instance that is to be changed, None where it has
# none, and raises where the caller may not change one.
OwnerCheck = Callable[[Mapping[str, str | None]], None]
_CHUNK = 500
_INSTANCES, _MOVES = schema.instances, schema.moves
_ALLOCATIONS = schema.allocations
# Statements that every release or confirmation executes, made once; ``keys``
# are uuids of instances, or names of service hosts.
_LOCK = (
    sa.select(
        _INSTANCES.c.uuid,
        _INSTANCES.c.host,
        _INSTANCES.c.node,
        _INSTANCES.c.state,
        _INSTANCES.c.project_id,
    )
    .where(rows.among(_INSTANCES.c.uuid))
    .order_by(_INSTANCES.c.uuid)
    .with_for_update()
)
_HOSTS_OF = (
    sa.select(_INSTANCES.c.uuid, _INSTANCES.c.host).where(
        rows.among(_INSTANCES.c.uuid)
    ),
    sa.select(_MOVES.c.instance_uuid, _MOVES.c.host).where(
        rows.among(_MOVES.c.instance_uuid)
    ),
)
_CONFIRM = (
    sa.update(_INSTANCES)
    .where(rows.among(_INSTANCES.c.uuid))
    .values(state='confirmed')
)
_DELETE_INSTANCES = sa.delete(_INSTANCES).where(rows.among(_INSTANCES.c.uuid))
_MOVES_OF = sa.select(_MOVES).where(rows.among(_MOVES.c.instance_uuid))
_DELETE_MOVES = sa.delete(_MOVES).where(rows.among(_MOVES.c.instance_uuid))
_HELD = (
    sa.select(_ALLOCATIONS)
    .where(rows.among(_ALLOCATIONS.c.consumer_uuid))
    .order_by(_ALLOCATIONS.c.host_id, _ALLOCATIONS.c.resource_class)
    .with_for_update()
)
_DELETE_HELD = sa.delete(_ALLOCATIONS).where(
    rows.among(_ALLOCATIONS.c.consumer_uuid)
)
_HOST_IDS = sa.select(schema.hosts.c.id).where(rows.among(schema.hosts.c.host))


def cancel(
    writer: Writer,
    asked: Mapping[str, outcomes.Asked],
    check: OwnerCheck | None = None,
) -> list[str]:
    """Release claims as callers asked; return the consumers that had some.

    Requests for these consumers that were sent before claim nothing more, if
    they are of the project that asked, or it asked for all.

    :param asked: by consumer
    :raises Forbidden: *check* does; the transaction has to be rolled back
    """
    outcomes.record_releases(writer, asked, outcomes.ALL)
    return release(writer, list(asked), check)


def release(
    writer: Writer,
    consumers: Sequence[str],
    check: OwnerCheck | None = None,
    final: bool = True,
) -> list[str]:
    """Release the claims of consumers; return the consumers that had some.

    :param final: false: the request that claimed is not finished yet, and
        may claim again
    :raises Forbidden: *check* does; the transaction has to be rolled back
    """
    released: set[str] = set()
    for part in in_chunks(consumers, _CHUNK):
        released.update(_release(writer, part, check, final))
    return sorted(released)


def _release(
    writer: Writer,
    consumers: Sequence[str],
    check: OwnerCheck | None,
    final: bool,
) -> set[str]:
    conn = writer.conn
    locked = lock(conn, consumers)
    _check_owners(locked, check)
    held = release_allocations(writer, consumers)
    if check is not None:
        # Allocations without an instance belong to no project.
        check(dict.fromkeys(held - locked.keys()))
    gone = sorted(u for u, row in locked.items() if row.state != 'reported')
    _remove_moves(writer, consumers, final)
    if final:
        outcomes.keep_placements(writer, gone, moving=False)
    _remove_instances(writer, gone)
    _touch_hosts(writer, {locked[uuid].host for uuid in gone})
    return held.union(gone)


def _remove_moves(
    writer: Writer, instances: Sequence[str], final: bool
) -> None:
    """Delete moves of instances whose allocations are gone."""
    found = writer.conn.execute(_MOVES_OF, {'keys': instances}).all()
    if not found:
        return
    moving = [row.instance_uuid for row in found]
    if final:
        outcomes.keep_placements(writer, moving, moving=True)
    writer.conn.execute(_DELETE_MOVES, {'keys': moving})
    writer.touched.load += [row.host_id for row in found]
    writer.touched.instances += moving


def claimed_hosts(
    conn: Connection, instances: Sequence[str]
) -> dict[str, str]:
    """Return the service host on which each instance is expected.

    For an instance that moves this is the host that it moves to.
    """
    found: dict[str, str] = {}
    for query in _HOSTS_OF:
        for part in in_chunks(instances, _CHUNK):
            rows_found = conn.execute(query, {'keys': part})
            found.update((uuid, host) for uuid, host in rows_found)
    return found


def confirm(
    writer: Writer, seen: Mapping[str, str], check: OwnerCheck | None = None
) -> list[str]:
    """Confirm the claims of instances that hosts report to have.

    An instance that arrives where it was to move has moved: its allocations
    on the old host are released.

    :param seen: instance -> service host that has it
    :return: the instances whose claim this confirmed
    :raises Forbidden: *check* does; the transaction has to be rolled back
    """
    conn = writer.conn
    locked = lock(conn, list(seen))
    _check_owners(locked, check)
    arrived = _arrivals(conn, seen)
    for uuid, move in arrived.items():
        if uuid in locked:
            _complete_move(writer, locked[uuid], move)
    fresh = [
        uuid
        for uuid, row in locked.items()
        if (uuid in arrived and row.state != 'confirmed')
        or (row.state == 'claimed' and row.host == seen[uuid])
    ]
    if fresh:
        conn.execute(_CONFIRM, {'keys': fresh})
        writer.touched.instances += fresh
    return sorted({*fresh, *(arrived.keys() & locked.keys())})


def cancel_moves(
    writer: Writer,
    asked: Mapping[str, outcomes.Asked],
    check: OwnerCheck | None = None,
) -> list[str]:
    """Drop moves as callers asked; return the instances that had one.

    Requests to move these instances that were sent before claim nothing more,
    as for :func:`cancel`.

    :param asked: by instance
    :raises Forbidden: *check* does; the transaction has to be rolled back
    """
    outcomes.record_releases(writer, asked, outcomes.MOVE)
    return drop_moves(writer, list(asked), check)


def drop_moves(
    writer: Writer,
    instances: Sequence[str],
    check: OwnerCheck | None = None,
    final: bool = True,
) -> list[str]:
    """Release the second claims of instances that do not move after all.

    :param final: as for :func:`release`
    :return: the instances that had such a claim
    :raises Forbidden: *check* does; the transaction has to be rolled back
    """
    conn = writer.conn
    _check_owners(lock(conn, instances), check)
    found = conn.execute(_MOVES_OF, {'keys': instances}).all()
    if final:
        outcomes.keep_placements(
            writer, [move.instance_uuid for move in found], moving=True
        )
    for move in found:
        release_allocations(writer, [move.instance_uuid], host_id=move.host_id)
        writer.touched.load.append(move.host_id)
    conn.execute(_DELETE_MOVES, {'keys': instances})
    dropped = sorted(move.instance_uuid for move in found)
    writer.touched.instances += dropped
    return dropped


def remove_from_host(
    writer: Writer, host: str, instances: Sequence[str]
) -> list[str]:
    """Apply that a host does not have instances any more.

    The move of an instance that was to move locked is dropped. An instance
    that moves away gets its new place. Any other is removed.

    :return: the instances that this changed
    """
    conn = writer.conn
    locked = lock(conn, instances)
    moves = {
        row.instance_uuid: row
        for row in conn.execute(_MOVES_OF, {'keys': instances})
    }
    dropped = [uuid for uuid, move in moves.items() if move.host == host]
    drop_moves(writer, dropped)
    changed = set(dropped)
    for uuid, row in locked.items():
        if row.host != host:
            continue
        changed.add(uuid)
        move = moves.get(uuid)
        if move is not None and move.host != host:
            _complete_move(writer, row, move)
        else:
            release_allocations(writer, [uuid])
            outcomes.keep_placements(writer, [uuid], moving=False)
            _remove_instances(writer, [uuid])
            _touch_hosts(writer, [host])
    return sorted(changed)


def release_allocations(
    writer: Writer, consumers: Sequence[str], host_id: int | None = None
) -> set[str]:
    """Delete allocations; return the consumers that had some.

    :param host_id: only allocations on this host
    """
    conn = writer.conn
    find, delete = _HELD, _DELETE_HELD
    if host_id is not None:
        there = _ALLOCATIONS.c.host_id == host_id
        find, delete = find.where(there), delete.where(there)
    held = conn.execute(find, {'keys': consumers}).all()
    if held:
        _decrement_used(conn, held)
        conn.execute(delete, {'keys': consumers})
        writer.touched.load += sorted({row.host_id for row in held})
    return {row.consumer_uuid for row in held}


def _decrement_used(conn: Connection, held: Sequence[Any]) -> None:
    """Subtract allocations from the use of inventories, in fixed order.

    :param held: rows of ``allocations``
    """
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
        claim_sql.change_use(dialect), claim_sql.parameters(dialect, asked)
    )


def lock(conn: Connection, uuids: Iterable[str]) -> dict[str, Any]:
    """Lock rows of instances in the order of their uuids; return them."""
    found: dict[str, Any] = {}
    for part in in_chunks(sorted(set(uuids)), _CHUNK):
        locked = conn.execute(_LOCK, {'keys': part})
        found.update((row.uuid, row) for row in locked)
    return found


def _check_owners(locked: Mapping[str, Any], check: OwnerCheck | None) -> None:
    if check is not None:
        check({uuid: row.project_id for uuid, row in locked.items()})


def _arrivals(conn: Connection, seen: Mapping[str, str]) -> dict[str, Any]:
    """Return the moves of instances that reached the host they move to."""
    found: dict[str, Any] = {}
    for part in in_chunks(seen, _CHUNK):
        for move in conn.execute(_MOVES_OF, {'keys': part}):
            if seen[move.instance_uuid] == move.host:
                found[move.instance_uuid] = move
    return found


def _complete_move(writer: Writer, row: Any, move: Any) -> None:
    """Give an instance its new place; release its allocations elsewhere.

    :param row: of ``instances``
    :param move: of ``moves``
    """
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
        release_allocations(writer, [row.uuid], host_id=old)
    outcomes.keep_placements(writer, [row.uuid], moving=False)
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
            idempotency_key=move.idempotency_key,
        )
    )
    moves = schema.moves
    conn.execute(sa.delete(moves).where(moves.c.instance_uuid == row.uuid))
    writer.touched.instances.append(row.uuid)
    writer.touched.load.append(move.host_id)
    _touch_hosts(writer, [row.host])


def _remove_instances(writer: Writer, uuids: Sequence[str]) -> None:
    """Delete instances and their memberships in server groups."""
    if not uuids:
        return
    group_policies.remove_members(writer, uuids)
    writer.conn.execute(_DELETE_INSTANCES, {'keys': uuids})
    writer.touched.instances_gone += uuids


def _touch_hosts(writer: Writer, hosts: Iterable[str]) -> None:
    """Record that the numbers of service hosts' instances changed."""
    for part in in_chunks(sorted(hosts), _CHUNK):
        ids = writer.conn.execute(_HOST_IDS, {'keys': part})
        writer.touched.load += list(ids.scalars())
