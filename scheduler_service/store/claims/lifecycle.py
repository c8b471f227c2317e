"""Claims are confirmed, moved and released.

Stateless: every function runs on the thread that owns the writing
transaction, and changes nothing when it is called again.

Which rows a statement sees, and what may be committed in between: under READ
COMMITTED each statement sees what was committed before it began, so two
statements of one transaction may see different claims. Therefore

- every function first locks the rows of the instances, in the order of their
  uuids, and decides by what the locked rows say. As long as an instance's row
  is locked, its claim is neither confirmed nor released nor moved, and no
  other claim is made for it: a claim inserts the row, a move locks it.
- what is given back is what the statement that locked it has read, and
  exactly these rows are deleted (``rows.delete_packed``).
- a claim that is committed after the rows were locked has a row that is not
  locked. :func:`release` finds its allocations, locks the row then, has its
  owner checked, and goes on. :func:`cancel` looks once more after it took
  the counter, by which claims are ordered, too: what it finds is released by
  the same transaction, run again. Everything else leaves such an instance
  alone, as if it had run before the claim was made.

Where a *check* raises Forbidden, the transaction has to be rolled back.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.engine.jobs import OwnerCheck
from scheduler_service.model import STANDARD_CLASSES, Instance
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import claim_sql, outcomes
from scheduler_service.store.connection import Writer, in_chunks
from scheduler_service.store.driver_errors import TransactionOvertaken

_INSTANCES, _MOVES = schema.instances, schema.moves
_ALLOCATIONS = schema.allocations
_key_of = operator.attrgetter(*claim_sql.HELD)
# Statements that every release or confirmation executes, made once; ``keys``
# are uuids of instances, or names of service hosts.
LOCK = (
    sa.select(
        _INSTANCES.c.uuid,
        _INSTANCES.c.host,
        _INSTANCES.c.node,
        _INSTANCES.c.state,
        _INSTANCES.c.kind,
        _INSTANCES.c.project_id,
        _INSTANCES.c.idempotency_key,
        _INSTANCES.c.created_at,
    )
    .where(rows.among(_INSTANCES.c.uuid))
    .order_by(_INSTANCES.c.uuid)
    .with_for_update()
)
CONFIRM = (
    sa.update(_INSTANCES)
    .where(rows.among(_INSTANCES.c.uuid))
    .values(state='confirmed')
)
_MEMBERS = schema.server_group_members
_GROUPS_OF = sa.select(_MEMBERS.c.group_uuid).where(
    rows.among(_MEMBERS.c.instance_uuid)
)
_MOVES_OF = sa.select(_MOVES).where(rows.among(_MOVES.c.instance_uuid))
# The present claims of instances.
_PRESENT = sa.select(
    _INSTANCES.c.uuid,
    _INSTANCES.c.host,
    _INSTANCES.c.node,
    _INSTANCES.c.placement,
).where(rows.among(_INSTANCES.c.uuid), _INSTANCES.c.state != 'reported')
_HELD = (
    sa.select(_ALLOCATIONS)
    .where(rows.among(_ALLOCATIONS.c.consumer_uuid))
    .order_by(_ALLOCATIONS.c.host_id, _ALLOCATIONS.c.resource_class)
    .with_for_update()
)
# What a release of these instances leaves behind if it was claimed meanwhile.
CLAIMS_OF = sa.union_all(
    sa.select(_INSTANCES.c.uuid).where(
        rows.among(_INSTANCES.c.uuid),
        _INSTANCES.c.state != sa.literal_column("'reported'"),
    ),
    sa.select(_MOVES.c.instance_uuid).where(
        rows.among(_MOVES.c.instance_uuid)
    ),
    sa.select(_ALLOCATIONS.c.consumer_uuid).where(
        rows.among(_ALLOCATIONS.c.consumer_uuid)
    ),
)
_PLACEMENTS = sa.select(_INSTANCES.c.uuid, _INSTANCES.c.placement).where(
    rows.among(_INSTANCES.c.uuid), _INSTANCES.c.placement.is_not(None)
)
# What is reported of an instance was read at most so long ago, in seconds: it
# says nothing about a move that was claimed since.
_READ_S = 60.0
# In place of the id of a host that does not matter.
_ELSEWHERE = 0
_HOST_IDS = sa.select(schema.hosts.c.id).where(rows.among(schema.hosts.c.host))


def cancel(
    writer: Writer,
    requests: Mapping[str, outcomes.ReleaseRequest],
    check: OwnerCheck | None = None,
    kind: str = outcomes.ALL,
) -> list[str]:
    """Release claims for callers; return the consumers that had some.

    Requests for these consumers that were sent before claim nothing any more,
    if they are of the releasing project, or the release is for all projects.

    :param requests: by consumer
    :param kind: ``outcomes.MOVE``: only second claims, and requests to move
    :raises TransactionOvertaken: a claim was made that this has not seen; it
        is seen when the transaction is run again
    """
    left: Any = CLAIMS_OF
    if kind == outcomes.ALL:
        released = release(writer, list(requests), check)
    else:
        released = drop_moves(writer, list(requests), check)
        left = _MOVES_OF
    outcomes.record_releases(writer, requests, kind)
    # The counter is taken: later claims see the release.
    if rows.select_among(writer.conn, left, requests):
        raise TransactionOvertaken
    return released


def release(
    writer: Writer,
    consumers: Sequence[str],
    check: OwnerCheck | None = None,
    final: bool = True,
) -> list[str]:
    """Release the claims of consumers; return the consumers that had some.

    :param final: false: the request that claimed is not finished yet, and
        may claim again
    """
    released: set[str] = set()
    for part in in_chunks(consumers):
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
    late = sorted(held - locked.keys())
    if late:
        # Claimed since the rows were locked. Without a row: allocations that
        # belong to no project.
        more = lock(conn, late)
        _check_owners({**dict.fromkeys(late), **more}, check)
        # An instance that moves may have got more until its row was locked.
        held |= release_allocations(writer, late)
        locked |= more
    gone = sorted(u for u, row in locked.items() if row.state != 'reported')
    moves = moves_of(conn, locked)
    _remove_moves(writer, moves, final)
    if final:
        outcomes.keep_placements(writer, gone, moving=False)
    _remove_instances(writer, gone)
    touch_hosts(writer, {locked[uuid].host for uuid in gone})
    return held.union(gone)


def _remove_moves(
    writer: Writer, moves: Mapping[str, Any], final: bool
) -> None:
    """Delete moves of locked instances; their allocations are gone."""
    if not moves:
        return
    moving = sorted(moves)
    if final:
        outcomes.keep_placements(writer, moving, moving=True)
    _delete(writer.conn, 'moves', 'instance_uuid', moving)
    writer.touched.load += [row.host_id for row in moves.values()]
    writer.touched.instances += moving


def moves_of(conn: Connection, instances: Iterable[str]) -> dict[str, Any]:
    """Return the rows of ``moves`` of instances, by instance."""
    moves = rows.select_among(conn, _MOVES_OF, instances)
    return {row.instance_uuid: row for row in moves}


def confirm(
    writer: Writer,
    reported: Mapping[str, str | None],
    check: OwnerCheck | None = None,
    documents: Mapping[str, Instance] | None = None,
) -> list[str]:
    """Confirm the claims of instances that hosts report to have.

    An instance that arrives where it was to move has moved: its allocations
    on the old host are released. That a host has an instance which moves
    within it says nothing by itself: it has moved if its flavor is that of
    the move. If its flavor is another and it has no task, it does not move.

    :param reported: instance -> service host that has it; None: the place that
        it is expected in, the new one of an instance that moves
    :param documents: of all reported instances; None: they are unknown
    :return: the instances whose claim this confirmed, or whose move it ended
    """
    conn = writer.conn
    locked = _instances(lock(conn, reported))
    _check_owners(locked, check)
    moves = moves_of(conn, locked)
    arrived, failed = {}, {}
    for uuid, move in moves.items():
        if reported[uuid] is None or (
            reported[uuid] == move.host != locked[uuid].host
        ):
            arrived[uuid] = move
        elif documents and reported[uuid] == move.host:
            document = documents[uuid]
            flavorid = document.flavor.get('flavorid')
            if flavorid and flavorid == _resized_to(move.placement):
                arrived[uuid] = move
            elif flavorid and not document.task_state:
                failed[uuid] = move
    if failed:
        before = clock.read(conn) - _READ_S
        failed = {u: m for u, m in failed.items() if m.created_at < before}
        release_moves(writer, failed)
    for uuid, move in arrived.items():
        _complete_move(writer, locked[uuid], move)
    fresh = [
        uuid
        for uuid, row in locked.items()
        if (uuid in arrived and row.state != 'confirmed')
        or (row.state == 'claimed' and reported[uuid] in (None, row.host))
    ]
    if fresh:
        conn.execute(CONFIRM, {'keys': fresh})
        writer.touched.instances += fresh
    return sorted({*fresh, *arrived, *failed})


def _resized_to(placement: str | None) -> str | None:
    """Return the flavor of a claim that resizes an instance on its host."""
    return placement and msgspec.json.decode(placement).get('resized_to')


def resized(conn: Connection, instances: Iterable[str]) -> dict[str, str]:
    """Return the flavors that instances were to get on their own hosts.

    :return: of instances whose present claim was made for that
    """
    return {
        row.uuid: flavorid
        for row in rows.select_among(conn, _PLACEMENTS, instances)
        if (flavorid := _resized_to(row.placement))
    }


def drop_moves(
    writer: Writer,
    instances: Sequence[str],
    check: OwnerCheck | None = None,
) -> list[str]:
    """Release the second claims of instances that do not move after all.

    :return: the instances that had such a claim
    """
    locked = lock(writer.conn, instances)
    _check_owners(locked, check)
    return release_moves(writer, moves_of(writer.conn, locked))


def release_moves(
    writer: Writer, moves: Mapping[str, Any], final: bool = True
) -> list[str]:
    """Release second claims; return the instances that had them.

    :param moves: rows of ``moves`` by instance, of locked instances
    :param final: as for :func:`release`
    """
    present = {
        row.uuid: row
        for row in rows.select_among(writer.conn, _PRESENT, moves)
    }
    for uuid, move in moves.items():
        taken = claim_sql.promised(move.placement, move.host_id) or {}
        released = {move.host_id, *(provider for provider, _ in taken)}
        release_allocations(
            writer, [uuid], _ALLOCATIONS.c.host_id.in_(released)
        )
        if (row := present.get(uuid)) is not None:
            stays = (row.host, row.node) == (move.host, move.node)
            held = claim_sql.promised(
                row.placement, move.host_id if stays else _ELSEWHERE
            )
            _take_again(writer, uuid, held, released)
    _remove_moves(writer, moves, final)
    return sorted(moves)


def remove_from_host(
    writer: Writer,
    host: str,
    instances: Sequence[str],
    starting_stay: bool = False,
    resized_stay: bool = False,
) -> list[str]:
    """Apply that a host does not have instances any more.

    The move of an instance that was to move here is dropped. An instance
    that moves away gets its new place. Any other is removed.

    :param starting_stay: whether an instance that is claimed and not confirmed
        stays, since it may be starting
    :param resized_stay: whether an instance that was resized on the host
        stays, since the host may only have removed what it was before
    :return: the instances that this changed
    """
    conn = writer.conn
    locked = _instances(lock(conn, instances))
    moves = moves_of(conn, locked)
    dropped = {
        uuid: move
        for uuid, move in moves.items()
        if move.host == host
        and not (resized_stay and locked[uuid].host == host)
    }
    changed = set(release_moves(writer, dropped))
    stay = resized(conn, locked.keys() - moves.keys()) if resized_stay else ()
    for uuid, row in locked.items():
        if (
            row.host != host
            or uuid in stay
            or (starting_stay and row.state == 'claimed')
        ):
            continue
        changed.add(uuid)
        move = moves.get(uuid)
        if move is not None and uuid not in dropped:
            _complete_move(writer, row, move)
        else:
            release_allocations(writer, [uuid])
            outcomes.keep_placements(writer, [uuid], moving=False)
            _remove_instances(writer, [uuid])
            touch_hosts(writer, [host])
    return sorted(changed)


def release_allocations(
    writer: Writer, consumers: Iterable[str], where: Any = None
) -> set[str]:
    """Give back and delete exactly the allocations that are read.

    :param where: a condition on columns of ``allocations``
    :return: the consumers that had some
    """
    conn = writer.conn
    find = _HELD if where is None else _HELD.where(where)
    held = rows.select_among(conn, find, consumers)
    if held:
        amounts = Counter[tuple[int, str]]()
        for row in held:
            amounts[row.host_id, row.resource_class] -= row.amount
        claim_sql.add_use(conn, amounts)
        rows.delete_packed(
            conn, 'allocations', claim_sql.HELD, list(map(_key_of, held))
        )
        # Of the three standard classes every host keeps its inventories.
        more = [key for key in amounts if key[1] not in STANDARD_CLASSES]
        if more:
            drop_unused(conn, more)
        writer.touched.load += sorted({row.host_id for row in held})
    return {row.consumer_uuid for row in held}


def drop_unused(conn: Connection, keys: Sequence[tuple[int, str]]) -> None:
    """Delete inventories that are neither offered nor allocated any more.

    :param keys: (host id, resource class) of inventories that are locked
    """
    rows.delete_packed(
        conn, 'inventories', claim_sql.INVENTORY, keys, claim_sql.UNUSED
    )


def lock(conn: Connection, uuids: Iterable[str]) -> dict[str, Any]:
    """Lock rows of instances in the order of their uuids; return them."""
    locked = rows.select_among(conn, LOCK, sorted(set(uuids)))
    return {row.uuid: row for row in locked}


def _instances(locked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the locked rows that are of instances.

    Nothing that is reported of instances concerns pods.
    """
    return {u: row for u, row in locked.items() if row.kind == 'instance'}


def _check_owners(locked: Mapping[str, Any], check: OwnerCheck | None) -> None:
    # Without a row an instance has no project.
    if check is not None:
        check({uuid: row and row.project_id for uuid, row in locked.items()})


def _complete_move(writer: Writer, row: Any, move: Any) -> None:
    """Give an instance its new place; release its allocations elsewhere."""
    conn = writer.conn
    taken = claim_sql.promised(move.placement, move.host_id)
    released = {provider for provider, _ in taken or ()}
    where = None
    if (row.host, row.node) != (move.host, move.node):
        where = _ALLOCATIONS.c.host_id != move.host_id
        released.discard(move.host_id)
    release_allocations(writer, [row.uuid], where)
    _take_again(writer, row.uuid, taken, released)
    outcomes.keep_placements(writer, [row.uuid], moving=False)
    conn.execute(
        sa.update(_INSTANCES)
        .where(_INSTANCES.c.uuid == row.uuid)
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
    _delete(conn, 'moves', 'instance_uuid', [row.uuid])
    writer.touched.instances.append(row.uuid)
    writer.touched.load.append(move.host_id)
    touch_hosts(writer, [row.host])


def _take_again(
    writer: Writer,
    consumer: str,
    promised: Mapping[tuple[int, str], int] | None,
    released: Collection[int],
) -> None:
    """Take what one of two claims holds, once both are released.

    :param promised: by that claim; None: it is unknown, and nothing is taken
    :param released: hosts and aggregates of which both are
    """
    takes = {
        key: n for key, n in (promised or {}).items() if key[0] in released
    }
    take(writer, [(consumer, takes)])


def take(
    writer: Writer,
    taken: Sequence[tuple[str, Mapping[tuple[int, str], int]]],
) -> None:
    """Have consumers hold amounts, also where there is no room for them.

    :param taken: consumers, each with (host id, resource class) -> amount
    :raises TransactionOvertaken: a class that was not offered is now
    """
    total = Counter[tuple[int, str]]()
    for _, takes in taken:
        total.update(takes)
    if not total:
        return
    missing = len(total) - claim_sql.add_use(writer.conn, total)
    # Of classes that are not offered there; all other rows are locked now.
    if missing and missing != sum(
        rows.insert_missing(
            writer.conn,
            schema.inventories,
            {**claim_sql.not_offered(*key), 'used': n},
        )
        for key, n in sorted(total.items())
    ):
        raise TransactionOvertaken
    rows.insert_packed(
        writer.conn,
        'allocations',
        claim_sql.ALLOCATION,
        [(uid, *key, n) for uid, takes in taken for key, n in takes.items()],
    )


def _remove_instances(writer: Writer, uuids: Sequence[str]) -> None:
    if not uuids:
        return
    groups = writer.conn.execute(_GROUPS_OF, {'keys': uuids}).scalars()
    touched = sorted(set(groups))
    if touched:
        _delete(writer.conn, 'server_group_members', 'instance_uuid', uuids)
        writer.touched.groups += touched
    _delete(writer.conn, 'instances', 'uuid', uuids)
    writer.touched.instances_gone += uuids


def touch_hosts(writer: Writer, hosts: Iterable[str]) -> None:
    """Record that the numbers of service hosts' instances changed."""
    ids = rows.select_among(writer.conn, _HOST_IDS, sorted(hosts))
    writer.touched.load += [row.id for row in ids]


def _delete(
    conn: Connection, table: str, column: str, uuids: Iterable[str]
) -> None:
    rows.delete_packed(conn, table, {column: 'text'}, [(u,) for u in uuids])
