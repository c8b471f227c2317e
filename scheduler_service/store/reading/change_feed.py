"""The change feed: what was written since a revision, applied to a snapshot.

Stateless: any thread may call it with a connection of its own. Daemons learn
of each other's writes in this way. The last change that was read is read
again each time: where it is gone or another one, the database went back in
time, and nothing of the snapshot is certain.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import (
    with_aggregates,
    with_hosts,
)
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.columns.table import HostTable
from scheduler_service.model import ServerGroup
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import ChangeRecord
from scheduler_service.store.reading import loading, queries, together
from scheduler_service.store.reading.snapshot_loading import load_snapshot

_DECODER = msgspec.json.Decoder(ChangeRecord)
_MAX_CHANGES = 10_000
# How often, and after how many seconds, a missing change is looked for again.
_MORE_LOOKS = 2
_LOOK_AGAIN_S = 0.002
_CHANGES = schema.changes
_SINCE = (
    sa.select(
        _CHANGES.c.revision,
        _CHANGES.c.lineage,
        sa.case(
            (_CHANGES.c.revision > sa.bindparam('known'), _CHANGES.c.touched)
        ),
    )
    .where(_CHANGES.c.revision >= sa.bindparam('revision'))
    .order_by(_CHANGES.c.revision)
    .limit(sa.bindparam('most'))
)
_NONE: Mapping[int, str] = MappingProxyType({})


class HistoryChanged(Exception):
    """The database does not have the changes that a snapshot was read from.

    It went back in time: a backup was restored, or a server took over that
    had not received everything. Nothing of the snapshot is certain.
    """


class Change(NamedTuple):
    """A row of the ``changes`` table.

    :ivar touched: JSON of a :class:`ChangeRecord`; None where it was not read
    """

    revision: int
    lineage: str
    touched: str | None

    def record(self) -> ChangeRecord:
        """Return what it changed."""
        return _DECODER.decode(self.touched or '{}')


def since(
    conn: Connection,
    revision: int,
    known: int | None = None,
    limit: int = _MAX_CHANGES,
) -> list[Change]:
    """Return the change of *revision*, if there is one, and those after it.

    MariaDB may show a transaction without the one that it waited for, where
    both were committed while the statement began. A later statement shows
    both, so this looks again where a change is missing in between, up to
    three times in all.

    :param known: the last revision of which only the lineage is wanted; None:
        *revision*
    """
    known = revision if known is None else known
    found = _read(conn, revision, known, limit)
    for _ in range(_MORE_LOOKS):
        if not is_interrupted(found):
            break
        time.sleep(_LOOK_AGAIN_S)
        found = _read(conn, revision, known, limit)
    return found


def _read(
    conn: Connection, revision: int, known: int, limit: int
) -> list[Change]:
    asked = {'revision': revision, 'known': known, 'most': limit}
    return [Change(*row) for row in conn.execute(_SINCE, asked)]


def is_interrupted(found: Sequence[Change]) -> bool:
    """Whether a change is missing between the first and the last one."""
    return bool(found) and found[-1].revision - found[0].revision >= len(found)


def refresh(
    conn: Connection,
    snapshot: Snapshot,
    own: Mapping[int, str] = _NONE,
    on_released: Callable[[Sequence[str]], None] | None = None,
) -> Snapshot:
    """Return the snapshot brought up to date.

    :param own: revision -> lineage of changes that were made since the
        snapshot was read, and that it contains already
    :param on_released: called with instances whose claims callers released
    :raises HistoryChanged: the database went back in time
    """
    last = known = snapshot.revision
    while known + 1 in own:
        known += 1
    found = since(conn, last, known)
    if len(found) >= _MAX_CHANGES or _is_pruned(found, snapshot):
        return load_snapshot(conn)
    _check_history(found, snapshot, own)
    new = [one for one in found if one.revision > last]
    if not new:
        return snapshot
    touched = _merge(one.record() for one in new if one.revision not in own)
    if touched.instances_gone:
        # One that went may have been claimed again by this daemon since.
        mine = _merge(one.record() for one in new if one.revision in own)
        again = set(mine.instances).intersection(touched.instances_gone)
        touched.instances += sorted(again)
    if touched.released and on_released is not None:
        on_released(touched.released)
    if touched.everything:
        return load_snapshot(conn)
    table = _apply(conn, snapshot.hosts, touched)
    pools = loading.pools(conn) if touched.pools else snapshot.pools
    return Snapshot(table, pools, new[-1].revision, new[-1].lineage)


def _is_pruned(found: Sequence[Change], snapshot: Snapshot) -> bool:
    """Whether changes are missing before those that were found, or between.

    The newest change is never pruned, so nothing found is another matter.
    """
    if not found:
        return False
    first = snapshot.revision + (snapshot.lineage is None)
    return found[0].revision > first or is_interrupted(found)


def _check_history(
    found: Sequence[Change], snapshot: Snapshot, own: Mapping[int, str]
) -> None:
    """Check that everything that the snapshot contains is still there.

    :raises HistoryChanged: it is not
    """
    there = {one.revision: one.lineage for one in found}
    last = snapshot.revision
    expected = {last: snapshot.lineage}
    expected.update((key, own[key]) for key in own if key > last)
    for revision, lineage in expected.items():
        if there.get(revision) != lineage:
            raise HistoryChanged(
                f'revision {revision} is not the change that was read before'
            )


def prune(conn: Connection, older_than: float) -> int:
    """Delete old changes, but never the newest; return how many.

    A reader that needs a deleted change loads everything again.

    :param older_than: seconds since the change, by the database's clock
    """
    table = schema.changes
    last = sa.select(sa.func.max(table.c.revision)).scalar_subquery()
    newest = conn.execute(sa.select(last)).scalar() or 0
    before = clock.read(conn) - older_than
    gone = conn.execute(
        sa.delete(table).where(
            table.c.created_at < before, table.c.revision < newest
        )
    )
    return gone.rowcount


def _merge(changes: Iterable[ChangeRecord]) -> ChangeRecord:
    """Return one record of all that several changed."""
    whole = ChangeRecord()
    parts: dict[str, set[Any]] = {
        name: set() for name in ChangeRecord.__struct_fields__
    }
    for one in changes:
        for name in ChangeRecord.__struct_fields__:
            value = getattr(one, name)
            if isinstance(value, bool):
                setattr(whole, name, getattr(whole, name) or value)
            else:
                parts[name].update(value)
    for name, values in parts.items():
        if values:
            setattr(whole, name, sorted(values))
    return whole


def _apply(
    conn: Connection, table: HostTable, touched: ChangeRecord
) -> HostTable:
    """Return the table with everything that was touched read again."""
    instances, groups = touched.instances, touched.groups
    load = sorted({*touched.load} - {*touched.hosts})
    conn = together.send(
        conn,
        [
            (queries.BOUND_FOR.some, instances),
            (queries.INSTANCES.some, instances),
            (queries.MEMBERS.some, groups),
            (queries.GROUPS.some, groups),
            (queries.INSTANCE_COUNTS.some, load),
            (queries.HOST_LOADS, load),
            (queries.USES, load),
        ],
    )
    if touched.instances or touched.instances_gone:
        now = loading.instances(conn, touched.instances)
        there = {one.uuid for one in now}
        for one in now:
            table.put_instance(one.uuid, one)
        for uuid in {*touched.instances, *touched.instances_gone} - there:
            table.put_instance(uuid, None)
    if touched.groups:
        table = dataclasses.replace(
            table, groups=_groups(conn, table, touched.groups)
        )
    if touched.hosts or touched.hosts_gone:
        wanted = {*touched.hosts, *touched.hosts_gone}
        hosts = loading.hosts(conn, sorted(wanted))
        table = with_hosts(table, list(hosts.items()), wanted - hosts.keys())
    if touched.aggregates:
        table = with_aggregates(table, loading.aggregates(conn))
    if load:
        _set_loads(conn, table, load)
    return table


def _groups(
    conn: Connection, table: HostTable, uuids: list[str]
) -> dict[str, ServerGroup]:
    groups = {
        uuid: group
        for uuid, group in table.groups.items()
        if uuid not in set(uuids)
    }
    groups.update(loading.groups(conn, uuids))
    return groups


def _set_loads(conn: Connection, table: HostTable, ids: list[int]) -> None:
    used: dict[str, dict[int, int]] = {}
    numbers: dict[str, dict[int, float]] = {
        'num_instances': {},
        'num_io_ops': {},
        'disk_available_least': {},
        'up': {},
    }
    for store_id, load in loading.loads(conn, ids).items():
        row = table.row_of_id(store_id)
        if row is None:
            continue
        for name, amount in load.used.items():
            if name in table.resources:
                used.setdefault(name, {})[row] = amount
        least = load.available_least
        numbers['num_instances'][row] = load.num_instances
        numbers['num_io_ops'][row] = load.num_io_ops
        numbers['up'][row] = load.up
        numbers['disk_available_least'][row] = (
            np.nan if least is None else least
        )
    table.set_load(used, numbers)
