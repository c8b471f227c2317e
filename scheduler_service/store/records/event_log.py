"""What happened to daemons, and the commands of operators."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import moments, texts
from scheduler_service.moments import Occurrence
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Writer

_TABLE = schema.events
SILENT = 'silent'
COMMAND = 'command'
_ENABLE, _DISABLE = ('host', 'enable'), ('host', 'disable')
# The times of one event differ by less, in seconds.
_SAME_S = 0.5


def record(conn: Connection, who: str, happened: Iterable[Occurrence]) -> None:
    """Record what happened, once: a commit's answer may have been lost.

    :param who: the name of a daemon, or of a user of the operating system
    """
    columns = _TABLE.c
    for event, detail, began, ended in happened:
        # Not every database stores all characters.
        values = {
            'event': event, 'who': who, 'detail': texts.printable(detail),
        }  # fmt: skip
        stored = sa.select(columns.id).where(
            *(columns[name] == value for name, value in values.items()),
            sa.func.abs(columns.begun_at - clock.at(began)) < _SAME_S,
        )
        if conn.execute(stored).first() is None:
            times = {
                'begun_at': clock.at(began),
                'ended_at': None if ended is None else clock.at(ended),
            }
            conn.execute(_TABLE.insert().values(**values, **times))


def record_silence(conn: Connection, who: str, seen_at: float) -> None:
    """Record that a daemon was silent after its last sign of life.

    :param seen_at: seconds since the epoch, by the database's clock
    """
    values = {'event': SILENT, 'who': who, 'detail': '', 'begun_at': seen_at}
    conn.execute(_TABLE.insert().values(values))


def since(conn: Connection, moment: float) -> list[dict[str, Any]]:
    """Return what happened since a time, in the order of its begin.

    :param moment: seconds since the epoch
    :return: event, who, detail, begun_at and ended_at
    """
    columns = _TABLE.c
    query = sa.select(
        columns.event, columns.who, columns.detail, columns.begun_at,
        columns.ended_at,
    ).where(
        sa.func.coalesce(columns.ended_at, columns.begun_at) >= moment
    )  # fmt: skip
    rows = conn.execute(query.order_by(columns.begun_at, columns.id))
    return [dict(row._mapping) for row in rows]


def disabling(
    conn: Connection, host: str, reason: str | None
) -> dict[str, str | None]:
    """Return since when a host is disabled, by which user, and why.

    :param reason: that the host has
    :return: since, by and reason; the first two are None unless the last
        command on the host's status disabled it with this reason
    """
    columns = _TABLE.c
    query = sa.select(columns.begun_at, columns.who, columns.detail).where(
        columns.event == COMMAND, columns.detail.contains('able ')
    )
    given, since, by = texts.printable(reason or ''), None, None
    for at, who, line in conn.execute(query.order_by(columns.id.desc())):
        words = shlex.split(line)
        pairs = {*itertools.pairwise(words)} & {_DISABLE, _ENABLE}
        if pairs and texts.printable(host) in words:
            if _DISABLE in pairs and given in ' '.join(words):
                since, by = moments.text(at), who
            break
    return {'since': since, 'by': by, 'reason': reason}


def oldest(conn: Connection) -> float | None:
    """Return from when on everything is recorded; None: nothing is."""
    moment: float | None = conn.execute(
        sa.select(sa.func.min(_TABLE.c.begun_at))
    ).scalar()
    return moment


def prune(writer: Writer, before: float, most: int) -> int:
    """Delete old events, but the newest of them: from it on all are there.

    :param before: seconds since the epoch
    :param most: how many to delete
    :return: how many were deleted
    """
    columns = _TABLE.c
    old = sa.select(columns.id).where(columns.begun_at < before)
    newest_first = old.order_by(columns.begun_at.desc(), columns.id.desc())
    ids = [*writer.conn.execute(newest_first.offset(1).limit(most)).scalars()]
    writer.conn.execute(sa.delete(_TABLE).where(columns.id.in_(ids)))
    return len(ids)
