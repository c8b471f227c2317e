"""Records of the allocations that claims have in the placement service.

Stateless: runs on the thread that owns the writing transaction. A record is
written before the allocations are made, as a rule in the transaction of the
claim, so that no allocation is forgotten when a daemon dies. It is deleted
once the host has the instance: from then on the allocations are the compute
service's.

The record of a released claim is checked until its calls have ended and no
allocation is left: a call without an answer may take effect later. A call has
ended when it was answered, or :data:`CALL_ENDS_S` after its connection was
closed. A daemon that undoes allocations marks the record first
(:func:`begin_undo`) and records the result afterwards (:func:`end_undo`);
meanwhile no claim is made for the instance.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import in_chunks

# Seconds in which a call may take effect after its connection was closed; also
# how long a call is under way at most.
CALL_ENDS_S = 300.0
# The longest time between two checks of a record, in seconds.
_LONGEST_PAUSE_S = 60.0
INTENT = {'instance_uuid': 'text', 'host_id': 'int', 'resources': 'text'}
_TABLE, _HOSTS = schema.placement_claims, schema.hosts
_HOST_IDS = sa.select(_HOSTS.c.uuid, _HOSTS.c.id).where(
    rows.among(_HOSTS.c.uuid)
)
# The columns of a :class:`Record`.
_RECORDS = sa.select(
    _TABLE.c.instance_uuid,
    _TABLE.c.host_id,
    _HOSTS.c.uuid,
    _TABLE.c.resources,
    _TABLE.c.looks,
).join(_HOSTS, _HOSTS.c.id == _TABLE.c.host_id)
# Where the clock was set back, the time may be far in the future.
_IS_DUE = sa.or_(
    sa.func.coalesce(_TABLE.c.look_at, 0.0) <= clock.NOW,
    _TABLE.c.look_at > clock.NOW + 2 * _LONGEST_PAUSE_S,
)
# No call can make allocations of a record any more.
_ENDED = sa.and_(
    sa.func.coalesce(_TABLE.c.asked_at, 0.0) < clock.NOW - 2 * CALL_ENDS_S,
    sa.func.coalesce(_TABLE.c.call_until, 0.0) < clock.NOW,
)


def _is_held(of: Any) -> sa.ColumnElement[bool]:
    """Whether the store has the claim of a record, or of the table's row."""
    held = schema.allocations.c
    return sa.exists().where(
        held.consumer_uuid == of.instance_uuid, held.host_id == of.host_id
    )


_IS_HELD = _is_held(_TABLE.c)


class BeingUndone(Exception):
    """Allocations of an earlier claim of an instance are not undone yet."""

    def __init__(self, instance: str) -> None:
        super().__init__(
            'What an earlier claim left in the placement service is not '
            f'undone yet: instance {instance}'
        )


class Record(NamedTuple):
    """An instance and the host that it has allocations on.

    :ivar resources: JSON of the amounts, or of the allocations of several
        providers and their mappings
    :ivar looks: how often the record was checked
    """

    instance_uuid: str
    host_id: int
    host_uuid: str
    resources: str
    looks: int = 0

    @property
    def document(self) -> dict[str, Any]:
        """The amounts, or the allocations and their mappings."""
        return dict(msgspec.json.decode(self.resources))

    @property
    def allocations(self) -> dict[str, dict[str, int]]:
        """Uuid of a provider -> resource class -> amount."""
        document = self.document
        if 'allocations' not in document:
            return {self.host_uuid: document}
        return {
            uuid: provider['resources']
            for uuid, provider in document['allocations'].items()
        }


class UndoAttempt(NamedTuple):
    """An attempt to undo the allocations of a record.

    :ivar token: that no other attempt has
    :ivar until: time until which a call of an earlier attempt may yet undo
        them; None: there is no such call
    """

    record: Record
    token: str
    until: float | None


# An instance, the uuid of its host, and the amounts, or a document with the
# allocations of several providers.
Intent = tuple[str, str, Mapping[str, Any]]


@functools.cache
def intending(dialect: str) -> str:
    """Return SQL that records allocations which are about to be made.

    Its parameters are those of :func:`rows.pack` with :data:`INTENT`. It
    inserts no row for an instance of which an earlier claim is being undone,
    and fails where there is a record of the same claim: then :func:`intend`
    has to decide.
    """
    now = clock.sql(dialect)
    return (
        'INSERT INTO placement_claims '  # noqa: S608
        '(instance_uuid, host_id, resources, asked_at) '
        f'SELECT a.instance_uuid, a.host_id, a.resources, {now} '
        f'FROM {rows.source(dialect, INTENT)} '
        'WHERE NOT EXISTS (SELECT 1 FROM placement_claims AS undone '
        'WHERE undone.instance_uuid = a.instance_uuid '
        f'AND undone.undone_until > {now})'
    )


def _lock(conn: Connection, instances: Iterable[str]) -> list[Any]:
    query = sa.select(
        _TABLE.c.instance_uuid,
        _TABLE.c.host_id,
        _TABLE.c.resources,
        (_TABLE.c.undone_until > clock.NOW).label('undone'),
    ).where(_TABLE.c.instance_uuid.in_(sorted(set(instances))))
    return list(conn.execute(query.with_for_update()))


def _host_ids(conn: Connection, claims: Iterable[Intent]) -> dict[str, int]:
    hosts = {host for _, host, _ in claims}
    return dict(map(tuple, rows.select_among(conn, _HOST_IDS, hosts)))


def intend(conn: Connection, claims: Iterable[Intent]) -> None:
    """Record that allocations are about to be made, or may be there already.

    :raises DBDuplicateEntry: another daemon records the same just now
    :raises BeingUndone: an earlier claim of an instance is being undone, or
        has other allocations on its host and was not undone yet
    """
    for part in in_chunks(claims):
        of_host = _host_ids(conn, part)
        there = {}
        for row in _lock(conn, [uuid for uuid, _, _ in part]):
            if row.undone:
                raise BeingUndone(row.instance_uuid)
            there[row.instance_uuid, row.host_id] = row
        new = []
        for uuid, host, amounts in part:
            document = rows.document(amounts)
            row = there.get((uuid, of_host.get(host)))
            if row is None and host in of_host:
                values = uuid, of_host[host], document
                new.append(dict(zip(INTENT, values, strict=True)))
            elif row is not None and row.resources != document:
                raise BeingUndone(uuid)
            elif row is not None:
                _ask_again(conn, row)
        if new:
            conn.execute(_TABLE.insert().values(asked_at=clock.NOW), new)


def _ask_again(conn: Connection, row: Any) -> None:
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
            ('asked_at', clock.NOW),
            ('made_at', None),
            ('absent', 0),
            ('looks', 0),
            ('look_at', None),
        )
    )


def _is(record: Any) -> sa.ColumnElement[bool]:
    return sa.and_(
        _TABLE.c.instance_uuid == record.instance_uuid,
        _TABLE.c.host_id == record.host_id,
    )


def end_calls(
    conn: Connection,
    claims: Iterable[Intent],
    made: bool,
    sure: bool = True,
    age: float = 0.0,
) -> None:
    """Record that the calls for claims have ended.

    A record that was deleted before its call ended is written again where
    allocations were made, so that they are undone.

    :param made: whether the allocations are made
    :param sure: whether each call was answered; false: a call may still take
        effect
    :param age: how long ago that was, in seconds
    """
    for part in in_chunks(claims):
        of_host = _host_ids(conn, part)
        keys = {
            (uuid, of_host[host]): amounts
            for uuid, host, amounts in part
            if host in of_host
        }
        values: dict[str, Any] = {'asked_at': None}
        if made:
            at = clock.NOW - age
            values['made_at'] = sa.func.coalesce(_TABLE.c.made_at, at)
        if not sure:
            values['call_until'] = clock.NOW - age + CALL_ENDS_S
        changed = conn.execute(
            sa.update(_TABLE)
            .where(
                _among(keys),
                # Not where another call for the record began since.
                sa.func.coalesce(_TABLE.c.asked_at, 0.0) <= clock.NOW - age,
            )
            .values(values)
        )
        if made and changed.rowcount < len(keys):
            _record_again(conn, keys, values)


def _among(keys: Iterable[tuple[str, int]]) -> sa.ColumnElement[bool]:
    # MariaDB finds the rows by the first condition alone.
    pairs = sorted(keys)
    return sa.and_(
        _TABLE.c.instance_uuid.in_({uuid for uuid, _ in pairs}),
        sa.tuple_(_TABLE.c.instance_uuid, _TABLE.c.host_id).in_(pairs),
    )


def _record_again(
    conn: Connection,
    keys: Mapping[tuple[str, int], Mapping[str, Any]],
    values: Mapping[str, Any],
) -> None:
    """Record allocations that were made for claims without a record.

    Not where the host has the instance: then they are the compute service's.
    """
    uuid, host_id = _TABLE.c.instance_uuid, _TABLE.c.host_id
    present = sa.select(uuid, host_id).where(_among(keys))
    placed = schema.instances
    arrived = (
        sa.select(placed.c.uuid, _HOSTS.c.id)
        .join(
            _HOSTS,
            (_HOSTS.c.host == placed.c.host)
            & (_HOSTS.c.node == placed.c.node),
        )
        .where(
            placed.c.uuid.in_({instance for instance, _ in keys}),
            placed.c.state != 'claimed',
        )
    )
    there = {
        tuple(row)
        for query in (present, arrived)
        for row in conn.execute(query)
    }
    until = values.get('call_until')
    for key in keys.keys() - there:
        row = dict(zip(INTENT, (*key, rows.document(keys[key])), strict=True))
        insert = _TABLE.insert().values(made_at=clock.NOW, call_until=until)
        conn.execute(insert.values(row))


def replace(
    conn: Connection, instance: str, host: str, document: Mapping[str, Any]
) -> None:
    """Record other allocations for a claim, of which none were made.

    :param host: uuid of the host
    """
    host_id = sa.select(_HOSTS.c.id).where(_HOSTS.c.uuid == host)
    conn.execute(
        sa.update(_TABLE)
        .where(
            _TABLE.c.instance_uuid == instance, _TABLE.c.host_id.in_(host_id)
        )
        .values(resources=rows.document(document))
    )


def recorded(conn: Connection, instance: str, host: str) -> Record | None:
    """Return the record of a claim on a host; None: there is none.

    :param host: uuid of the host
    """
    query = _RECORDS.where(
        _TABLE.c.instance_uuid == instance, _HOSTS.c.uuid == host
    )
    return next(iter(_read(conn, query)), None)


def forget(
    conn: Connection, instances: Sequence[str], ended: bool = False
) -> None:
    """Forget the records of instances: others undo their allocations.

    :param ended: only where no call can make allocations any more
    """
    for part in in_chunks(instances):
        delete = sa.delete(_TABLE).where(_TABLE.c.instance_uuid.in_(part))
        conn.execute(delete.where(_ENDED) if ended else delete)


def orphans(conn: Connection, limit: int) -> list[Record]:
    """Return records of released claims that are due for a check.

    Unchecked records come first, then those due the longest.
    """
    due_at = sa.func.coalesce(_TABLE.c.look_at, 0.0)
    query = _RECORDS.where(~_IS_HELD, _IS_DUE).order_by(due_at)
    return _read(conn, query.limit(limit))


def released(conn: Connection, instance: str) -> list[Record]:
    """Return the records of an instance's released claims."""
    of_instance = _TABLE.c.instance_uuid == instance
    return _read(conn, _RECORDS.where(of_instance, ~_IS_HELD))


def begin_undo(
    conn: Connection, record: Record, held: bool = False
) -> UndoAttempt | None:
    """Record that the allocations of a claim are about to be undone.

    :param held: whether the claim may be held
    :return: None: another daemon claimed, undid or undoes it meanwhile
    """
    table = _TABLE.c
    # Another claim for the same instance and host waits for this row.
    row = conn.execute(
        sa.select(
            table.undone_until,
            (table.undone_until > clock.NOW).label('is_late'),
            sa.and_(table.undone_by.is_not(None), ~_IS_DUE).label(
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
    conn.execute(
        sa.update(_TABLE)
        .where(_is(record))
        .values(
            undone_by=attempt.token,
            undone_until=clock.NOW + CALL_ENDS_S,
            look_at=clock.NOW + _LONGEST_PAUSE_S,
        )
    )
    return attempt


def end_undo(
    conn: Connection,
    attempt: UndoAttempt,
    there: bool | None,
    sure: bool = True,
) -> None:
    """Record the result of undoing allocations; delete a finished record.

    :param there: whether they were there, and are not any more; None: they
        may still be there
    :param sure: whether each call that undoes them was answered; false: a call
        may still take effect
    """
    table = _TABLE.c
    mine = sa.and_(_is(attempt.record), table.undone_by == attempt.token)
    if there is not None and sure:
        conn.execute(
            sa.delete(_TABLE).where(
                mine, _ENDED, sa.true() if there else table.absent > 0
            )
        )
    pause = min(2.0**attempt.record.looks, _LONGEST_PAUSE_S)
    absent = sa.case((_ENDED, table.absent + 1), else_=0)
    conn.execute(
        sa.update(_TABLE)
        .where(mine)
        .values(
            undone_by=None,
            undone_until=attempt.until if sure else clock.NOW + CALL_ENDS_S,
            looks=table.looks + 1,
            absent=absent if there is False else 0,
            look_at=clock.NOW + pause,
        )
    )


def unconfirmed(
    conn: Connection,
    older_than: float,
    limit: int,
    host_ids: Sequence[int] | None = None,
) -> list[Record]:
    """Return records whose allocations were made long ago, oldest first.

    Only records that are due for a check: see :func:`postpone`.

    :param older_than: seconds, by the database's clock
    :param host_ids: on these hosts; None: on any
    """
    made_at = _TABLE.c.made_at
    query = _RECORDS.where(
        made_at < clock.read(conn) - older_than, _IS_HELD, _IS_DUE
    )
    if host_ids is not None:
        query = query.where(_TABLE.c.host_id.in_(host_ids))
    return _read(conn, query.order_by(made_at).limit(limit))


def unmarked(conn: Connection, older_than: float, limit: int) -> list[Record]:
    """Return records of old claims whose calls have no recorded end.

    A daemon died before it recorded that their allocations were made. Only
    records that are due for a check: see :func:`postpone`.

    :param older_than: seconds since the claim, by the database's clock
    """
    placed, moving = schema.instances, schema.moves
    before = clock.read(conn) - older_than
    claimed_at = sa.func.coalesce(moving.c.created_at, placed.c.created_at)
    query = (
        _RECORDS.outerjoin(placed, placed.c.uuid == _TABLE.c.instance_uuid)
        .outerjoin(
            moving,
            (moving.c.instance_uuid == _TABLE.c.instance_uuid)
            & (moving.c.host_id == _TABLE.c.host_id),
        )
        .where(
            _TABLE.c.made_at.is_(None), claimed_at < before, _IS_HELD, _IS_DUE
        )
    )
    return _read(conn, query.limit(limit))


def _read(conn: Connection, query: Any) -> list[Record]:
    return [Record(*row) for row in conn.execute(query)]


def postpone(conn: Connection, record: Record) -> None:
    """Postpone the check of a record, longer each time."""
    conn.execute(
        sa.update(_TABLE)
        .where(_is(record))
        .values(
            looks=_TABLE.c.looks + 1,
            look_at=clock.NOW + min(2.0**record.looks, _LONGEST_PAUSE_S),
        )
    )


def has_unmarked(
    conn: Connection, host_ids: Sequence[int] | None = None
) -> bool:
    """Whether allocations are being made, or were and are not marked yet.

    :param host_ids: on these hosts; None: on any
    """
    under_way = _TABLE.c.asked_at > clock.NOW - 2 * CALL_ENDS_S
    query = sa.select(_TABLE.c.host_id).where(
        _TABLE.c.made_at.is_(None), under_way
    )
    if host_ids is not None:
        query = query.where(_TABLE.c.host_id.in_(host_ids))
    return conn.execute(query.limit(1)).first() is not None


def made_before(
    conn: Connection, host_ids: Sequence[int], before: float
) -> dict[int, list[str]]:
    """Return the instances whose allocations were made before, by host id.

    :param before: time by the database's clock
    """
    by_host: dict[int, list[str]] = {}
    for part in in_chunks(host_ids):
        query = sa.select(_TABLE.c.host_id, _TABLE.c.instance_uuid).where(
            _TABLE.c.host_id.in_(part), _TABLE.c.made_at <= before
        )
        for host_id, uuid in conn.execute(query):
            by_host.setdefault(host_id, []).append(uuid)
    return by_host
