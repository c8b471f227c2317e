"""Finds stored decisions by what is in them.

Stateless: any thread may call it with a connection of its own. Time and
outcome are conditions of the query; the rest is looked up in the documents,
newest first, until there are enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, schema

REFUSED = 'refused'
# What is no refusal.
_GOOD = ('chosen', 'ordered')
_PART = 500
_COLUMNS = ('id', 'created_at', 'request_id', 'kind', 'outcome', 'document')


class Filter(NamedTuple):
    """Which decisions are wanted; what is None does not count.

    :ivar since: seconds until now, by the database's clock
    :ivar outcome: ``chosen``, the name of an error, or ``refused``
    :ivar filter: the filter that left no host
    :ivar project: whose request it was
    :ivar host: a service host that was chosen
    """

    since: float | None = None
    outcome: str | None = None
    filter: str | None = None
    project: str | None = None
    host: str | None = None


class Found(NamedTuple):
    """One decision in short.

    :ivar filter: which left no host; empty: it was none
    :ivar hosts: service hosts that were chosen
    """

    created_at: float
    request_id: str
    kind: str
    outcome: str
    project_id: str | None
    filter: str
    hosts: list[str]


def search(
    conn: Connection, wanted: Filter, limit: int | None = None
) -> list[Found]:
    """Return the newest decisions that are wanted, newest first.

    :param limit: at most so many; None: all
    """
    found = []
    for one in _rows(conn, wanted):
        if _matches(one, wanted):
            found.append(one)
            if len(found) == limit:
                break
    return found


def filters(conn: Connection) -> set[str]:
    """Return the names of the filters that refused the newest requests."""
    refused = _rows(conn, Filter(outcome=REFUSED))
    return {one.filter for one in itertools.islice(refused, _PART)} - {''}


def _rows(conn: Connection, wanted: Filter) -> Iterator[Found]:
    """Yield decisions, newest first, in parts: there may be very many."""
    table = schema.decisions
    columns = [getattr(table.c, name) for name in _COLUMNS]
    query = sa.select(*columns).order_by(table.c.id.desc()).limit(_PART)
    if wanted.since is not None:
        query = query.where(
            table.c.created_at >= clock.read(conn) - wanted.since
        )
    if wanted.outcome == REFUSED:
        query = query.where(table.c.outcome.not_in(_GOOD))
    elif wanted.outcome is not None:
        query = query.where(table.c.outcome == wanted.outcome)
    before = None
    while True:
        part = query if before is None else query.where(table.c.id < before)
        rows = conn.execute(part).all()
        for row in rows:
            yield _found(row)
        if len(rows) < _PART:
            return
        before = rows[-1].id


def _found(row: Any) -> Found:
    document = msgspec.json.decode(row.document)
    facts = (document.get('error') or {}).get('facts') or {}
    return Found(
        row.created_at,
        row.request_id,
        row.kind,
        row.outcome,
        document.get('project_id'),
        _decisive(facts),
        [one['selected']['host'] for one in document.get('placements') or ()],
    )


def _decisive(facts: Mapping[str, Any]) -> str:
    """Return the filter that left no host or pool; empty: it was none."""
    for step in facts.get('funnel') or ():
        if not step.get('end', step.get('left')):
            return str(step['filter'])
    return ''


def _matches(one: Found, wanted: Filter) -> bool:
    return (
        wanted.filter in (None, one.filter)
        and wanted.project in (None, one.project_id)
        and (wanted.host is None or wanted.host in one.hosts)
    )
