"""Records of what stages of the cycle may have done for claims.

Stateless: runs on the thread that owns the writing transaction. A record is
written before the stage does anything, as a rule in the transaction of the
claim, so that nothing is forgotten when a daemon dies. It lives as long as the
claim, or until the host has the instance where that takes over what the stage
did (:data:`TAKEN_OVER`).

The record of a claim that is held no more is checked until the stage's calls
have ended and nothing is left: a call without an answer may take effect later.
A call has ended when it was answered, or :data:`CALL_ENDS_S` after its
connection was closed. A daemon that undoes something marks the record first
(:func:`begin_undo`) and records the result afterwards (:func:`end_undo`);
meanwhile no claim is made for the instance on that host, or on any where the
host takes over what is undone: another service then knows it by the instance.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.engine.attempt import Attempt
from scheduler_service.engine.ports import Intent, StageRecord, Undone
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import in_chunks

# Seconds in which a call may take effect after its connection was closed; also
# how long a call is under way at most.
CALL_ENDS_S = 300.0
# The longest time between two checks of a record, in seconds.
_LONGEST_PAUSE_S = 60.0
# After this time others undo what a daemon began to, twice as late each time:
# it was killed, or its stage is slow.
_UNDO_ENDS_S = 10.0
# Stages of which a host takes over what they did, with the instance.
TAKEN_OVER = ('complete',)
INTENT = {
    'stage': 'text',
    'instance_uuid': 'text',
    'host_id': 'int',
    'document': 'text',
}
_TABLE, _HOSTS = schema.stage_records, schema.hosts
_HOST_IDS = sa.select(_HOSTS.c.uuid, _HOSTS.c.id).where(
    rows.among(_HOSTS.c.uuid)
)
# The columns of a :class:`StageRecord`.
RECORDS = sa.select(
    _TABLE.c.stage,
    _TABLE.c.instance_uuid,
    _TABLE.c.host_id,
    sa.func.coalesce(_HOSTS.c.uuid, ''),
    sa.func.coalesce(_HOSTS.c.host, ''),
    _TABLE.c.document,
    _TABLE.c.looks,
).outerjoin(_HOSTS, _HOSTS.c.id == _TABLE.c.host_id)
# Where the clock was set back, the time may be far in the future.
IS_DUE = sa.or_(
    sa.func.coalesce(_TABLE.c.look_at, 0.0) <= clock.NOW,
    _TABLE.c.look_at > clock.NOW + 2 * _LONGEST_PAUSE_S,
)
# No call can do anything for a record any more.
_ENDED = sa.and_(
    sa.func.coalesce(_TABLE.c.asked_at, 0.0) < clock.NOW - 2 * CALL_ENDS_S,
    sa.func.coalesce(_TABLE.c.call_until, 0.0) < clock.NOW,
)


def _is_held(of: Any) -> sa.ColumnElement[bool]:
    """Whether the store has the claim of a record, or of the table's row.

    A claim that takes no amounts has its instance or its move alone.
    """
    held, placed, moving, host = (
        table.alias()
        for table in (
            schema.allocations, schema.instances, schema.moves, _HOSTS,
        )
    )  # fmt: skip
    return sa.or_(
        sa.exists().where(
            held.c.consumer_uuid == of.instance_uuid,
            held.c.host_id == of.host_id,
        ),
        sa.exists().where(
            placed.c.uuid == of.instance_uuid,
            placed.c.state != 'reported',
            placed.c.host == host.c.host,
            placed.c.node == host.c.node,
            host.c.id == of.host_id,
        ),
        sa.exists().where(
            moving.c.instance_uuid == of.instance_uuid,
            moving.c.host_id == of.host_id,
        ),
    )


IS_HELD = _is_held(_TABLE.c)


class UndoAttempt(NamedTuple):
    """An attempt to undo what a record says.

    :ivar token: that no other attempt has
    :ivar until: time until which a call of an earlier attempt may yet undo
        it; None: there is no such call
    """

    record: StageRecord
    token: str
    until: float | None


class CallEnd(NamedTuple):
    """Calls of a stage that ended together, at a monotonic time.

    :ivar made: whether the stage did it
    :ivar sure: whether each call was answered; false: a call may still take
        effect
    """

    stage: str
    claims: Sequence[Intent]
    made: bool
    sure: bool
    at: float


class BeingUndone(Exception):
    """What an earlier claim of an instance left is not undone yet."""

    def __init__(self, instance: str) -> None:
        super().__init__(
            'What an earlier claim left is not undone yet: instance '
            f'{instance}'
        )


@functools.cache
def intending(dialect: str) -> str:
    """Return SQL that records what stages are about to do for claims.

    Its parameters are those of :func:`rows.pack` with :data:`INTENT`. It
    inserts no row where the stage undoes an earlier claim of the instance and
    the host (of the instance alone, where the host takes over). It fails where
    there is a record of the same claim: then :func:`intend` has to decide.
    """
    now, names = clock.sql(dialect), ', '.join(INTENT)
    taken_over = ', '.join(f"'{stage}'" for stage in TAKEN_OVER)
    return (
        f'INSERT INTO stage_records ({names}, asked_at) '  # noqa: S608
        f'SELECT {", ".join(f"a.{name}" for name in INTENT)}, {now} '
        f'FROM {rows.source(dialect, INTENT)} '
        'WHERE NOT EXISTS (SELECT 1 FROM stage_records AS undone '
        'WHERE undone.stage = a.stage '
        'AND undone.instance_uuid = a.instance_uuid '
        f'AND (undone.host_id = a.host_id OR a.stage IN ({taken_over})) '
        f'AND undone.undone_until > {now})'
    )


def _lock(conn: Connection, stage: str, instances: Iterable[str]) -> list[Any]:
    query = sa.select(
        _TABLE.c.stage,
        _TABLE.c.instance_uuid,
        _TABLE.c.host_id,
        _TABLE.c.document,
        (_TABLE.c.undone_until > clock.NOW).label('undone'),
    ).where(
        _TABLE.c.stage == stage,
        _TABLE.c.instance_uuid.in_(sorted(set(instances))),
    )
    return list(conn.execute(query.with_for_update()))


def _host_ids(conn: Connection, claims: Iterable[Intent]) -> dict[str, int]:
    hosts = {host for _, host, _ in claims}
    return dict(map(tuple, rows.select_among(conn, _HOST_IDS, hosts)))


def intend(
    conn: Connection,
    stage: str,
    claims: Iterable[Intent],
    replace: bool = False,
) -> None:
    """Record what a stage is about to do, or may have done already.

    :param replace: whether it does anew what it did for the same claim
    :raises DBDuplicateEntry: another daemon records the same just now
    :raises BeingUndone: an earlier claim of an instance is being undone, or
        has another record on its host and was not undone yet
    """
    for part in in_chunks(claims):
        of_host = _host_ids(conn, part)
        keys = {(uuid, of_host.get(host)) for uuid, host, _ in part}
        there = {}
        for row in _lock(conn, stage, [uuid for uuid, _, _ in part]):
            key = row.instance_uuid, row.host_id
            if row.undone and (key in keys or stage in TAKEN_OVER):
                raise BeingUndone(row.instance_uuid)
            there[key] = row
        new = []
        for uuid, host, document in part:
            row = there.get((uuid, of_host.get(host)))
            if row is None and host in of_host:
                values = stage, uuid, of_host[host], document
                new.append(dict(zip(INTENT, values, strict=True)))
            elif row is not None and row.document != document and not replace:
                raise BeingUndone(uuid)
            elif row is not None:
                _ask_again(conn, row, document)
        if new:
            conn.execute(_TABLE.insert().values(asked_at=clock.NOW), new)


def _ask_again(conn: Connection, row: Any, document: str) -> None:
    """Record that a call is about to be made for a record that is there.

    An earlier call without an answer may take effect as well.
    """
    conn.execute(
        sa.update(_TABLE)
        .where(_is(row))
        .ordered_values(
            # First: MariaDB takes what was set before for the old value.
            (
                'call_until',
                sa.func.coalesce(
                    _TABLE.c.asked_at + 2 * CALL_ENDS_S, _TABLE.c.call_until
                ),
            ),
            ('document', document),
            ('asked_at', clock.NOW),
            ('made_at', None),
            ('absent', 0),
            ('looks', 0),
            ('look_at', None),
            ('undone_at', None),
        )
    )


def _is(record: Any) -> sa.ColumnElement[bool]:
    return sa.and_(
        _TABLE.c.stage == record.stage,
        _TABLE.c.instance_uuid == record.instance_uuid,
        _TABLE.c.host_id == record.host_id,
    )


def end_calls(conn: Connection, end: CallEnd) -> None:
    """Record that a stage's calls for claims have ended.

    A record that was deleted before its call ended is written again where the
    call had an effect, so that it is undone.
    """
    age = time.monotonic() - end.at
    for part in in_chunks(end.claims):
        of_host = _host_ids(conn, part)
        keys = {
            (uuid, of_host[host]): document
            for uuid, host, document in part
            if host in of_host
        }
        values: dict[str, Any] = {'asked_at': None}
        if end.made:
            at = clock.NOW - age
            values['made_at'] = sa.func.coalesce(_TABLE.c.made_at, at)
        if not end.sure:
            values['call_until'] = clock.NOW - age + CALL_ENDS_S
        changed = conn.execute(
            sa.update(_TABLE)
            .where(
                _among(end.stage, keys),
                # Not where another call for the record began since.
                sa.func.coalesce(_TABLE.c.asked_at, 0.0) <= clock.NOW - age,
            )
            .values(values)
        )
        if end.made and changed.rowcount < len(keys):
            _record_again(conn, end.stage, keys, values)


def _among(
    stage: str, keys: Iterable[tuple[str, int]]
) -> sa.ColumnElement[bool]:
    # MariaDB finds the rows by the first conditions alone.
    pairs = sorted(keys)
    return sa.and_(
        _TABLE.c.stage == stage,
        _TABLE.c.instance_uuid.in_({uuid for uuid, _ in pairs}),
        sa.tuple_(_TABLE.c.instance_uuid, _TABLE.c.host_id).in_(pairs),
    )


def _record_again(
    conn: Connection,
    stage: str,
    keys: Mapping[tuple[str, int], str],
    values: Mapping[str, Any],
) -> None:
    """Record what was done for claims without a record.

    Not where the host has the instance, and took it over.
    """
    uuid, host_id = _TABLE.c.instance_uuid, _TABLE.c.host_id
    present = sa.select(uuid, host_id).where(_among(stage, keys))
    there = {tuple(row) for row in conn.execute(present)}
    if stage in TAKEN_OVER:
        there |= _arrived(conn, {instance for instance, _ in keys})
    until = values.get('call_until')
    for key in sorted(keys.keys() - there):
        row = dict(zip(INTENT, (stage, *key, keys[key]), strict=True))
        insert = _TABLE.insert().values(made_at=clock.NOW, call_until=until)
        conn.execute(insert.values(row))


def _arrived(conn: Connection, uuids: Iterable[str]) -> set[Any]:
    """Return instances that hosts have, each with the id of its host."""
    placed = schema.instances
    query = (
        sa.select(placed.c.uuid, _HOSTS.c.id)
        .join(
            _HOSTS,
            (_HOSTS.c.host == placed.c.host)
            & (_HOSTS.c.node == placed.c.node),
        )
        .where(placed.c.uuid.in_(sorted(uuids)), placed.c.state != 'claimed')
    )
    return {tuple(row) for row in conn.execute(query)}


def recorded(
    conn: Connection, stage: str, instance: str, host: str
) -> StageRecord | None:
    """Return the record of a claim on a host; None: there is none.

    :param host: uuid of the host
    """
    query = RECORDS.where(
        _TABLE.c.stage == stage,
        _TABLE.c.instance_uuid == instance,
        _HOSTS.c.uuid == host,
    )
    return next(iter(read(conn, query)), None)


def take_over(
    conn: Connection, instances: Sequence[str], ended: bool = False
) -> None:
    """Forget what hosts take over with instances: others undo it.

    :param ended: only where no call can have an effect any more
    """
    for part in in_chunks(instances):
        delete = sa.delete(_TABLE).where(
            _TABLE.c.stage.in_(TAKEN_OVER), _TABLE.c.instance_uuid.in_(part)
        )
        conn.execute(delete.where(_ENDED) if ended else delete)


def forget_unused(conn: Connection, attempt: Attempt) -> None:
    """Forget what stages recorded that did not run, with claims released."""
    hosts = {
        placement.instance_uuid: placement.selected.uuid
        for placement in attempt.placements
    }
    unused = attempt.records.keys() - {*attempt.passed}
    of_host: dict[str, int] = {}
    if unused:
        found = rows.select_among(conn, _HOST_IDS, hosts.values())
        of_host = dict(map(tuple, found))
    for stage in unused:
        keys = {
            (uuid, of_host[hosts[uuid]])
            for uuid in attempt.records[stage]
            if hosts.get(uuid) in of_host
        }
        if keys:
            conn.execute(
                sa.delete(_TABLE).where(_among(stage, keys), ~IS_HELD)
            )


def orphans(
    conn: Connection,
    stages: Sequence[str],
    limit: int,
    instances: Sequence[str] | None = None,
) -> list[StageRecord]:
    """Return records of claims that are held no more, due for a check.

    Unchecked records come first, then those due the longest. Of a claim there
    are only those of the stage that is undone next.

    :param stages: whose records they are, in the order of undoing
    :param instances: of these; None: of any
    """
    other = _TABLE.alias()
    is_next = [
        sa.and_(
            _TABLE.c.stage == stage,
            ~sa.exists().where(
                other.c.stage.in_(stages[:at]),
                other.c.undone_at.is_(None),
                other.c.instance_uuid == _TABLE.c.instance_uuid,
                other.c.host_id == _TABLE.c.host_id,
            ),
        )
        if at
        else _TABLE.c.stage == stage
        for at, stage in enumerate(stages)
    ]
    due_at = sa.func.coalesce(_TABLE.c.look_at, 0.0)
    query = RECORDS.where(sa.or_(*is_next), ~IS_HELD, IS_DUE).order_by(due_at)
    if instances is not None:
        query = query.where(_TABLE.c.instance_uuid.in_(instances))
    return read(conn, query.limit(limit))


def released(conn: Connection, stage: str, instance: str) -> list[StageRecord]:
    """Return the records of an instance's released claims."""
    of_instance = _TABLE.c.stage == stage, _TABLE.c.instance_uuid == instance
    return read(conn, RECORDS.where(*of_instance, ~IS_HELD))


def begin_undo(
    conn: Connection, record: StageRecord, held: bool = False
) -> UndoAttempt | None:
    """Record that what a stage did for a claim is about to be undone.

    :param held: whether the claim may be held
    :return: None: another daemon claimed, undid or undoes it meanwhile
    """
    table = _TABLE.c
    # Another claim for the same instance and host waits for this row.
    row = conn.execute(
        sa.select(
            table.undone_until,
            (table.undone_until > clock.NOW).label('is_late'),
            sa.and_(table.undone_by.is_not(None), ~IS_DUE).label(
                'is_being_undone'
            ),
        )
        .where(_is(record))
        .with_for_update()
    ).first()
    if row is None or row.is_being_undone:
        return None
    if not held and conn.execute(sa.select(_is_held(record))).scalar():
        return None
    until = row.undone_until if row.is_late else None
    attempt = UndoAttempt(record, secrets.token_hex(16), until)
    postpone(
        conn, record, _UNDO_ENDS_S,
        undone_by=attempt.token, undone_until=clock.NOW + CALL_ENDS_S,
    )  # fmt: skip
    return attempt


def end_undo(
    conn: Connection,
    attempt: UndoAttempt,
    result: Undone | None,
    sure: bool = True,
) -> None:
    """Record the result of undoing; delete a finished record.

    :param result: None: it is not known
    :param sure: whether each call that undoes it was answered; false: a call
        may still take effect
    """
    table = _TABLE.c
    mine = sa.and_(_is(attempt.record), table.undone_by == attempt.token)
    is_absent = result is Undone.ABSENT
    is_undone = sure and (is_absent or result is Undone.DONE)
    if is_undone:
        conn.execute(
            sa.delete(_TABLE).where(
                mine, _ENDED, table.absent > 0 if is_absent else sa.true()
            )
        )
    absent = sa.case((_ENDED, table.absent + 1), else_=0)
    conn.execute(
        sa.update(_TABLE)
        .where(mine)
        .values(
            undone_by=None,
            undone_until=attempt.until if sure else clock.NOW + CALL_ENDS_S,
            absent=absent if is_absent else 0,
            undone_at=clock.NOW if is_undone else table.undone_at,
            look_at=clock.NOW + _pause(attempt.record),
        )
    )


def _pause(record: StageRecord, first: float = 1.0) -> float:
    # More would not change it, and some 1,000 are beyond a float.
    return min(first * 2.0 ** min(record.looks, 6), _LONGEST_PAUSE_S)


def read(conn: Connection, query: Any) -> list[StageRecord]:
    """Return the records that a query of :data:`RECORDS` finds."""
    return [StageRecord(*row) for row in conn.execute(query)]


def postpone(
    conn: Connection, record: StageRecord, first: float = 1.0, **values: Any
) -> None:
    """Postpone the check of a record, longer each time.

    :param first: for how long the first time, in seconds
    :param values: of more columns
    """
    values['looks'] = _TABLE.c.looks + 1
    values['look_at'] = clock.NOW + _pause(record, first)
    conn.execute(sa.update(_TABLE).where(_is(record)).values(values))
