"""How a shadow's decisions compare with another scheduler's, by the hour.

A week is some hundred rows. The decisions are kept with all others.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import moments
from scheduler_service.moments import Moment
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Writer

_TABLE, _COUNTERS = schema.shadow_verdicts, schema.counters
_READ_UNTIL = 'shadow_read_until'
_HOUR_S, _KEPT_S = 3600, 90 * 86400


class Verdict(enum.StrEnum):
    """How both compare; the page on moving says what each means."""

    SAME = 'same'
    EQUAL = 'equal'
    OTHER = 'another'
    REFUSES = 'refuses'
    PLACES = 'places'
    TOGETHER = 'in flight'
    UNKNOWN = 'not known'
    SKIPPED = 'not compared'
    MISSED = 'not received'


# In a summary, between their number and their causes.
_WORDS = {
    Verdict.OTHER: 'on another',
    Verdict.REFUSES: 'refused here',
    Verdict.PLACES: 'refused there',
    Verdict.TOGETHER: 'in flight together and placed by both',
    Verdict.UNKNOWN: 'not known',
    Verdict.SKIPPED: 'not compared',
    Verdict.MISSED: 'instances without a request',
}


class Count(NamedTuple):
    """Requests with one verdict and one cause.

    :ivar spent_ms: on deciding them all
    :ivar slowest_ms: on deciding one of them
    :ivar example: the request id of one of them
    """

    requests: int = 0
    spent_ms: float = 0.0
    slowest_ms: float = 0.0
    example: str | None = None

    def plus(self, other: Count) -> Count:
        """Return the sum."""
        return Count(
            self.requests + other.requests,
            self.spent_ms + other.spent_ms,
            max(self.slowest_ms, other.slowest_ms),
            other.example or self.example,
        )


Counts = dict[tuple[Verdict, str], Count]


def add(writer: Writer, counts: Counts, read_until: int | None) -> None:
    """Add counts to those of this hour; forget those of months ago.

    :param read_until: as of :func:`read_until`; None: as it was
    """
    conn, columns = writer.conn, _TABLE.c
    hour = int(clock.read(conn)) // _HOUR_S * _HOUR_S
    conn.execute(sa.delete(_TABLE).where(columns.hour < hour - _KEPT_S))
    for (verdict, cause), count in counts.items():
        key = {'hour': hour, 'verdict': verdict, 'cause': cause}
        rows.insert_missing(conn, _TABLE, {**key, **Count()._asdict()})
        mine = [columns[name] == value for name, value in key.items()]
        query = sa.select(*(columns[name] for name in Count._fields))
        total = Count(*conn.execute(query.where(*mine)).one()).plus(count)
        conn.execute(sa.update(_TABLE).where(*mine).values(total._asdict()))
    if read_until is not None:
        first = {'name': _READ_UNTIL, 'value': 0}
        rows.insert_missing(conn, _COUNTERS, first)
        mine = [_COUNTERS.c.name == _READ_UNTIL]
        conn.execute(
            sa.update(_COUNTERS).where(*mine).values(value=read_until)
        )


def read_until(conn: Connection) -> int | None:
    """Return up to when instances were counted that came without a request.

    In seconds since the epoch; None: never yet.
    """
    query = sa.select(_COUNTERS.c.value)
    return conn.execute(query.where(_COUNTERS.c.name == _READ_UNTIL)).scalar()


def report(conn: Connection, since: Moment) -> dict[str, Any]:
    """Return the comparison of the hours since a time.

    :return: ``summary``, a sentence; and ``shadow``: verdict, cause, requests,
        mean_ms and slowest_ms of our decisions, request_id of an example
    """
    columns, total = _TABLE.c, sa.func.sum(_TABLE.c.requests)
    first = moments.stamp(since, clock.read(conn)) - _HOUR_S
    query = sa.select(
        columns.verdict, columns.cause, total, sa.func.sum(columns.spent_ms),
        sa.func.max(columns.slowest_ms), sa.func.max(columns.example),
    ).where(columns.hour > first)  # fmt: skip
    order = [*map(str, Verdict)]
    found = [
        {
            'verdict': verdict,
            'cause': cause,
            'requests': int(requests),
            'mean_ms': round(spent_ms / int(requests), 1),
            'slowest_ms': round(slowest_ms, 1),
            'request_id': example,
        }
        for verdict, cause, requests, spent_ms, slowest_ms, example in sorted(
            conn.execute(query.group_by(columns.verdict, columns.cause)),
            key=lambda row: (order.index(row[0]), -row[2]),
        )
    ]
    return {'summary': _summary(found), 'shadow': found}


def _summary(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the comparison in a sentence."""
    numbers = dict.fromkeys(map(str, Verdict), 0)
    for row in found:
        numbers[row['verdict']] += row['requests']
    same = numbers[Verdict.SAME] + numbers[Verdict.EQUAL]
    parts = [f'{same:,} on the same or an equal host']
    for verdict, words in _WORDS.items():
        causes = [row['cause'] for row in found if row['verdict'] == verdict]
        by = f', by {", ".join(causes)}' if any(causes) else ''
        if verdict in (Verdict.REFUSES, Verdict.PLACES):
            by += ': look at these'
        if causes:
            parts.append(f'{numbers[verdict]:,} {words}{by}')
    asked = sum(numbers.values()) - numbers[Verdict.MISSED]
    return f'{asked:,} requests: {"; ".join(parts)}'
