"""Daemons that share the store: who they are, and how they are configured.

Times are the database's, so the clocks of the daemons do not matter.

The event log has what happened to daemons, and the commands of operators.
"""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import moments, texts
from scheduler_service.moments import Occurrence
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Writer

# Configurations that are kept, those that daemons used last.
_CONFIGURATIONS_KEPT = 500
# A daemon without a heartbeat for this number of seconds is silent; daemons
# send one every few seconds.
SILENT_S = 30.0
_TABLE = schema.events
SILENT = 'silent'
COMMAND = 'command'
_ENABLE, _DISABLE = ('host', 'enable'), ('host', 'disable')
# The times of one event differ by less, in seconds.
_SAME_S = 0.5


class Registration(NamedTuple):
    """What a daemon reports about itself.

    :ivar id: of its process; no other has it
    :ivar name: which others may have by mistake
    :ivar version: its release
    :ivar fingerprint: the same for daemons that are configured alike
    :ivar document: group -> option -> ``{value, source}``
    :ivar elsewhere: names of daemons on its topic that have another store
    :ivar degraded: what does not work on it, and for how many seconds
    """

    id: str
    name: str
    version: str
    fingerprint: str
    document: Mapping[str, Mapping[str, Any]]
    elsewhere: list[str] = []
    degraded: list[tuple[str, float]] = []


def register(writer: Writer, registration: Registration) -> None:
    """Record a daemon, or what changed of it, and its configuration."""
    values = {
        'name': registration.name,
        'version': registration.version,
        'fingerprint': registration.fingerprint,
        'seen_at': clock.NOW,
        'elsewhere': msgspec.json.encode(registration.elsewhere).decode(),
        'degraded': msgspec.json.encode(registration.degraded).decode(),
    }
    table, conn = schema.daemons, writer.conn
    update = (
        sa.update(table).where(table.c.id == registration.id).values(values)
    )
    if not conn.execute(update).rowcount:
        conn.execute(
            table.insert().values(
                id=registration.id, started_at=clock.NOW, **values
            )
        )
    if configuration(conn, registration.name) == registration.document:
        return
    table = schema.configurations
    conn.execute(
        table.insert().values(
            daemon=registration.name,
            version=registration.version,
            fingerprint=registration.fingerprint,
            document=msgspec.json.encode(registration.document).decode(),
        )
    )
    newest = sa.select(table.c.id).order_by(table.c.id.desc())
    old = conn.execute(newest.offset(_CONFIGURATIONS_KEPT).limit(1)).scalar()
    if old is not None:
        conn.execute(sa.delete(table).where(table.c.id <= old))


def configurations(conn: Connection) -> list[dict[str, Any]]:
    """Return the configurations that daemons had, newest first.

    :return: created_at, daemon, version, fingerprint
    """
    columns = schema.configurations.c
    query = sa.select(
        columns.created_at,
        columns.daemon,
        columns.version,
        columns.fingerprint,
    ).order_by(columns.id.desc())
    return [dict(row._mapping) for row in conn.execute(query)]


def documents(
    conn: Connection,
) -> Iterator[tuple[float, str, dict[str, dict[str, Any]]]]:
    """Yield (when, daemon, configuration) of all that are kept, in order."""
    columns = schema.configurations.c
    query = sa.select(columns.created_at, columns.daemon, columns.document)
    for at, daemon, document in conn.execute(query.order_by(columns.id)):
        yield at, daemon, msgspec.json.decode(document)


def configuration(
    conn: Connection, name: str
) -> dict[str, dict[str, Any]] | None:
    """Return the newest configuration of some; None: there is none.

    :param name: of a daemon, or a fingerprint
    """
    columns = schema.configurations.c
    wanted = sa.or_(columns.daemon == name, columns.fingerprint == name)
    query = sa.select(columns.document).where(wanted)
    text = conn.execute(query.order_by(columns.id.desc()).limit(1)).scalar()
    return text and msgspec.json.decode(text, type=dict[str, dict[str, Any]])


def configuration_at(
    conn: Connection, moment: float
) -> tuple[float, dict[str, dict[str, Any]]] | None:
    """Return the configuration of any daemon at a time.

    :return: when it was recorded, and the configuration: the last that was
        recorded until the time, else the first; None: there is none
    """
    columns = schema.configurations.c
    query = sa.select(columns.created_at, columns.document).limit(1)
    past = query.where(columns.created_at <= moment)
    row = (
        conn.execute(past.order_by(columns.id.desc())).first()
        or conn.execute(query.order_by(columns.id)).first()
    )
    if row is None:
        return None
    document = msgspec.json.decode(row[1], type=dict[str, dict[str, Any]])
    return row[0], document


def touch(writer: Writer, registration: Registration) -> bool:
    """Record a sign of life; return whether the daemon is recorded."""
    table = schema.daemons
    degraded = msgspec.json.encode(registration.degraded).decode()
    update = (
        sa.update(table)
        .where(table.c.id == registration.id)
        .values(seen_at=clock.NOW, degraded=degraded)
    )
    return bool(writer.conn.execute(update).rowcount)


def remove(writer: Writer, daemon_id: str) -> None:
    """Remove a daemon, which stops."""
    table = schema.daemons
    writer.conn.execute(sa.delete(table).where(table.c.id == daemon_id))


def prune(writer: Writer, seconds: float) -> None:
    """Remove daemons without a sign of life in the last *seconds*."""
    table, conn = schema.daemons, writer.conn
    for row in listing(conn):
        delete = sa.delete(table).where(table.c.id == row['id'])
        # Another daemon may do the same.
        if row['silent_for'] > seconds and conn.execute(delete).rowcount:
            record_silence(conn, row['name'], row['seen_at'])


def lasting(stored: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what lasts still: daemons that are silent or degraded.

    :param stored: as of :func:`listing`
    :return: as of :func:`event_log.since`
    """
    for row in stored:
        causes = [(SILENT, '', 0.0)]
        if row['silent_for'] <= SILENT_S:
            causes = [('degraded', *cause) for cause in row['degraded']]
        for event, detail, age in causes:
            yield {
                'event': event, 'who': row['name'], 'detail': detail,
                'begun_at': row['seen_at'] - age, 'ended_at': None,
            }  # fmt: skip


def listing(conn: Connection) -> list[dict[str, Any]]:
    """Return the daemons by name, without their configurations.

    :return: with ``silent_for``, seconds since the last sign of life
    """
    table = schema.daemons
    now = clock.read(conn)
    query = sa.select(table).order_by(table.c.name, table.c.started_at)
    return [
        {
            **row._mapping,
            'elsewhere': msgspec.json.decode(row.elsewhere),
            'degraded': msgspec.json.decode(row.degraded or '[]'),
            'silent_for': max(0.0, now - row.seen_at),
        }
        for row in conn.execute(query)
    ]


def _state(conn: Connection, fingerprint: str) -> str:
    group = (configuration(conn, fingerprint) or {}).get('compute', {})
    return 'shadow' if group.get('shadow', {}).get('value') else 'up'


def rows(
    conn: Connection, stored: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the daemons as rows of a list: whether they live, and agree.

    :param stored: as of :func:`listing`, whose order they keep
    """
    counts = Counter(row['fingerprint'] for row in stored)
    states = {each: _state(conn, each) for each in counts}
    return [
        {
            'name': row['name'],
            'state': (
                'silent'
                if row['silent_for'] > SILENT_S
                else states[row['fingerprint']]
            ),
            'version': row['version'],
            'configuration': row['fingerprint'],
            # From the configuration of most daemons; without any, from others.
            'differs': 2 * counts[row['fingerprint']] <= len(stored),
            'other_database': row['elsewhere'],
            'degraded': [text for text, _ in row['degraded']],
            'degraded_since': (
                moments.text(row['seen_at'] - max(s for _, s in causes))
                if (causes := row['degraded'])
                else None
            ),
            'started': moments.text(row['started_at']),
            'last_sign': moments.text(row['seen_at']),
        }
        for row in stored
    ]


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


def prune_events(writer: Writer, before: float, most: int) -> int:
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
