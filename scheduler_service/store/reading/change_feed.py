"""The change feed: reads what was written since a revision.

Daemons learn of each other's writes from the feed. The last change that was
read is read again each time: where it is gone or differs, the database went
back in time, and nothing of the snapshot is certain.
"""

from __future__ import annotations

import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import placed
from scheduler_service.columns.changes import Update
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.table import HostTable, Snapshot
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import ChangeRecord, in_chunks
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.snapshot import load_snapshot

_DECODER = msgspec.json.Decoder(ChangeRecord)
_MAX_CHANGES = 10_000
# The seconds before each attempt to read changes without a gap.
_PAUSES = (0.0, 0.002, 0.002)
_CHANGES = schema.changes
_SINCE = (
    sa.select(
        _CHANGES.c.revision,
        _CHANGES.c.lineage,
        sa.case(
            (_CHANGES.c.revision > sa.bindparam('after'), _CHANGES.c.touched)
        ),
    )
    .where(_CHANGES.c.revision >= sa.bindparam('revision'))
    .order_by(_CHANGES.c.revision)
    .limit(sa.bindparam('most'))
)
OnReleased = Callable[[Sequence[str]], None]
_NONE: Mapping[int, str] = MappingProxyType({})
# A query with more keys is sent by itself, in chunks.
_MAX_KEYS = 500
_HOSTS, _OFFERED = schema.hosts.c, schema.inventories.c
# Columns of a host that every claim changes.
_LOADS = sa.select(
    _HOSTS.id,
    _HOSTS.host,
    _HOSTS.node,
    _HOSTS.num_io_ops,
    _HOSTS.instances_other,
    _HOSTS.state,
).where(rows.among(_HOSTS.id))
_USES = sa.select(
    _OFFERED.host_id,
    _OFFERED.resource_class,
    _OFFERED.used,
    _OFFERED.available_least,
).where(rows.among(_OFFERED.host_id), schema.IS_OFFERED)
# Of all aggregates; hosts that are read anew know none.
_SHARED_USES = sa.select(
    _OFFERED.host_id, _OFFERED.resource_class, _OFFERED.used
).where(_OFFERED.host_id < 0, schema.IS_OFFERED)


class HistoryChanged(Exception):
    """The database lacks changes that a snapshot includes.

    The database went back in time: a backup was restored, or a server took
    over that had not received everything. Nothing of the snapshot is certain.
    """


class FeedEntry(NamedTuple):
    """A row of the ``changes`` table.

    :ivar touched: JSON of a :class:`ChangeRecord`; None where it was not read
    """

    revision: int
    lineage: str
    touched: str | None

    def record(self) -> ChangeRecord:
        """Return the record of the changed entities."""
        return _DECODER.decode(self.touched or '{}')


def since(
    conn: Connection, revision: int, after: int | None = None
) -> list[FeedEntry]:
    """Return the change of *revision*, if stored, and all later changes.

    MariaDB may show a transaction without the transaction that it waited for,
    where both were committed while the statement began. A later statement
    shows both, so the changes are read again if any in between is missing, up
    to three times in all.

    :param after: only changes after this revision have ``touched``; None:
        *revision*
    """
    after = revision if after is None else after
    values = {'revision': revision, 'after': after, 'most': _MAX_CHANGES}
    for pause in _PAUSES:
        if pause:
            time.sleep(pause)
        changes = [FeedEntry(*row) for row in conn.execute(_SINCE, values)]
        if not is_interrupted(changes):
            break
    return changes


def is_interrupted(changes: Sequence[FeedEntry]) -> bool:
    """Whether a change is missing between the first and the last."""
    return bool(changes) and changes[-1].revision - changes[0].revision >= len(
        changes
    )


def _ignore(read: Any) -> None:
    """Do nothing with what was read."""


def refresh(
    conn: Connection,
    snapshot: Snapshot,
    own: Mapping[int, str] = _NONE,
    on_released: OnReleased = _ignore,
    apply: Callable[[Update, HostTable], HostTable] = Update.apply,
    load: Callable[[Connection], Snapshot] = load_snapshot,
) -> Snapshot:
    """Return the snapshot brought up to date.

    :param own: revision -> lineage of this daemon's changes since the
        snapshot was read, which it includes already
    :param on_released: called with instances whose claims callers released
    :param apply: applies what was read to a table
    :param load: reads everything, where that is needed
    :raises HistoryChanged: the database went back in time
    """
    last = newest_own = snapshot.revision
    while newest_own + 1 in own:
        newest_own += 1
    changes = since(conn, last, newest_own)
    if len(changes) >= _MAX_CHANGES or _is_pruned(changes, snapshot):
        return load(conn)
    _check_history(changes, snapshot, own)
    new = [change for change in changes if change.revision > last]
    if not new:
        return snapshot
    touched = _merge(
        change.record() for change in new if change.revision not in own
    )
    if touched.instances_gone:
        # This daemon may have claimed a removed instance again since.
        mine = _merge(
            change.record() for change in new if change.revision in own
        )
        again = set(mine.instances).intersection(touched.instances_gone)
        touched.instances += sorted(again)
    if touched.released:
        on_released(touched.released)
    if touched.everything:
        return load(conn)
    table = apply(_read(conn, touched), snapshot.hosts)
    pools = loading.pools(conn) if touched.pools else snapshot.pools
    return Snapshot(table, pools, new[-1].revision, new[-1].lineage)


def _is_pruned(changes: Sequence[FeedEntry], snapshot: Snapshot) -> bool:
    """Whether changes are missing before the first or in between.

    The newest change is never pruned, so an empty list is not a sign of it.
    """
    if not changes:
        return False
    first = snapshot.revision + (snapshot.lineage is None)
    return changes[0].revision > first or is_interrupted(changes)


def _check_history(
    changes: Sequence[FeedEntry], snapshot: Snapshot, own: Mapping[int, str]
) -> None:
    """Check that all changes that the snapshot includes are still stored.

    :raises HistoryChanged: a change is missing or differs
    """
    there = {change.revision: change.lineage for change in changes}
    last = snapshot.revision
    later = {key: own[key] for key in own if key > last}
    for revision, lineage in {last: snapshot.lineage, **later}.items():
        if there.get(revision) != lineage:
            raise HistoryChanged(
                f'revision {revision} is not the change that was read before'
            )


def prune(conn: Connection, older_than: float) -> int:
    """Delete old changes, but never the newest; return how many.

    A reader that needs a deleted change loads the whole snapshot again.

    :param older_than: seconds since the change, by the database's clock
    """
    column = _CHANGES.c
    newest = conn.execute(sa.select(sa.func.max(column.revision))).scalar()
    before = clock.read(conn) - older_than
    deleted = conn.execute(
        sa.delete(_CHANGES).where(
            column.created_at < before, column.revision < (newest or 0)
        )
    )
    return deleted.rowcount


def _merge(changes: Iterable[ChangeRecord]) -> ChangeRecord:
    whole = ChangeRecord()
    parts: dict[str, set[Any]] = {
        name: set() for name in ChangeRecord.__struct_fields__
    }
    for change in changes:
        for name in ChangeRecord.__struct_fields__:
            value = getattr(change, name)
            if isinstance(value, bool):
                setattr(whole, name, getattr(whole, name) or value)
            else:
                parts[name].update(value)
    for name, values in parts.items():
        if values:
            setattr(whole, name, sorted(values))
    return whole


def _read(conn: Connection, touched: ChangeRecord) -> Update:
    """Return all touched entities as they are now."""
    instances, groups = touched.instances, touched.groups
    load = sorted({*touched.load} - {*touched.hosts})
    conn = _send(
        conn,
        [
            (loading.BOUND_FOR.some, instances),
            (loading.INSTANCES.some, instances),
            (loading.MEMBERS.some, groups),
            (loading.GROUPS.some, groups),
            (loading.INSTANCE_COUNTS.some, load),
            (_LOADS, load),
            (_USES, load),
        ],
    )
    update = Update()
    if instances or touched.instances_gone:
        update.instances = placed_instances(conn, instances)
        gone = {*instances, *touched.instances_gone}
        gone.difference_update(each.uuid for each in update.instances)
        update.instances_gone = sorted(gone)
    if groups:
        stored = loading.groups(conn, groups)
        update.groups = [*stored.values()]
        update.groups_gone = [uuid for uuid in groups if uuid not in stored]
    changed = {*touched.hosts, *touched.hosts_gone}
    if changed:
        hosts = loading.hosts(conn, sorted(changed))
        update.hosts = [*hosts.items()]
        update.hosts_gone = sorted(changed - hosts.keys())
        update.shared = [*map(tuple, conn.execute(_SHARED_USES))]
    if touched.aggregates:
        update.aggregates = loading.aggregates(conn)
    if load:
        _read_loads(conn, load, update)
    return update


def placed_instances(
    conn: Connection, uuids: list[str] | None = None
) -> list[PlacedInstance]:
    """Return entries for the instance index; None: of all instances."""
    moving = loading.bound_for(conn, uuids)
    return [
        placed(instance, state != 'reported', moving.get(instance.uuid, ''))
        for instance, state in loading.instance_documents(conn, uuids)
    ]


def _read_loads(conn: Connection, ids: list[int], update: Update) -> None:
    """Read again the columns of hosts that claims change."""
    columns: dict[str, list[float]] = defaultdict(list)
    place: dict[int, int] = {}
    for part in in_chunks(ids):
        counts = loading.instance_counts(conn, part)
        for host in conn.execute(_LOADS, {'keys': part}):
            place[host.id] = len(update.loaded)
            update.loaded.append(host.id)
            count = counts.get((host.host, host.node), 0)
            for name, value in (
                ('num_instances', host.instances_other + count),
                ('num_io_ops', host.num_io_ops),
                ('up', host.state == 'up'),
                ('disk_available_least', math.nan),
            ):
                columns[name].append(value)
    used: dict[str, list[int]] = {}
    for part in in_chunks(ids):
        for host_id, name, amount, least in conn.execute(
            _USES, {'keys': part}
        ):
            if host_id < 0:
                update.shared.append((host_id, name, amount))
            at = place.get(host_id)
            if at is None:
                continue
            if name not in used:
                used[name] = [-1] * len(place)
            used[name][at] = amount
            if name == 'DISK_GB' and least is not None:
                columns['disk_available_least'][at] = least
    update.numbers, update.used = dict(columns), used


def _send(
    conn: Connection, queries: Sequence[tuple[Any, list[Any]]]
) -> Connection:
    """Send queries in a single round trip, where that is possible.

    PostgreSQL runs them in libpq's pipeline mode. With any other database,
    each query is sent when it is executed.

    :param conn: in autocommit mode
    :param queries: statements with the parameter ``keys``, and its values
    :return: a connection that returns the answers where the queries are
        executed, and executes all other queries itself
    """
    some = [(query, keys) for query, keys in queries
            if keys and len(keys) <= _MAX_KEYS]  # fmt: skip
    if conn.dialect.name != 'postgresql' or len(some) < 2:
        return conn
    from psycopg.rows import namedtuple_row

    raw: Any = conn.connection.dbapi_connection
    cursors = []
    with raw.pipeline():
        for query, keys in some:
            cursor = raw.cursor(row_factory=namedtuple_row)
            cursor.execute(_text(query, conn.dialect), {'keys': keys})
            cursors.append(cursor)
    answers = {
        (id(query), tuple(keys)): cursor.fetchall()
        for (query, keys), cursor in zip(some, cursors, strict=True)
    }
    return cast(Connection, _Answered(conn, answers))


@functools.lru_cache(maxsize=32)
def _text(query: Any, dialect: Any) -> str:
    return str(query.compile(dialect=dialect))


class _Answered:
    """A connection with answers to some queries."""

    def __init__(
        self, conn: Connection, answers: Mapping[tuple[int, Any], list[Any]]
    ) -> None:
        self._conn = conn
        self._answers = answers

    def execute(self, query: Any, values: Any = None) -> Any:
        if values and 'keys' in values:
            answer = self._answers.get((id(query), tuple(values['keys'])))
            if answer is not None:
                return answer
        return self._conn.execute(query, values)
