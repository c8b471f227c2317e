"""How much daemons decided in each minute, and how full zones were.

Rows are kept for a week. Times are the database's, in seconds since the epoch.
A :class:`RateCounter` belongs to the thread that stores decisions; any thread
may call the functions.
"""

from __future__ import annotations

import bisect
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import moments
from scheduler_service.engine.measurements import BUCKETS
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.records.decision_list import GOOD
from scheduler_service.store.records.decisions import Decision

KEPT_S = 7 * 86_400.0
MINUTE_S = 60.0
# Between two looks at how full zones are.
PERIOD_S = 600.0
# Upper ends of the buckets of durations, in ms, as JSON has them.
_BOUNDS = [*(f'{1000 * bound:g}' for bound in BUCKETS), 'inf']
_RATES = {'minute': 'int', 'run': 'int', 'daemon': 'text', 'document': 'text'}
_USAGE = {'zone': 'text', 'resource_class': 'text', 'period': 'int',
          'capacity': 'int', 'used': 'int', 'unavailable': 'int'}  # fmt: skip
_Write = Callable[[Callable[[Writer], float]], float]


class Counts(msgspec.Struct):
    """Numbers of decisions; those of several minutes and daemons add up.

    :ivar outcomes: by outcome
    :ivar filters: refusals by the filter that left no host; empty: no filter
    :ivar durations: by the upper end of their bucket in ms, as a text; where
        a duration was measured
    """

    outcomes: dict[str, int] = {}
    filters: dict[str, int] = {}
    durations: dict[str, int] = {}

    def count(self, decision: Decision) -> None:
        """Add a decision."""
        _add(self.outcomes, decision.outcome)
        if decision.outcome not in GOOD:
            _add(self.filters, decision.filter or '')
        if decision.duration_ms is not None:
            at = bisect.bisect_left(BUCKETS, decision.duration_ms / 1000)
            _add(self.durations, _BOUNDS[at])

    def add(self, other: Counts) -> None:
        """Add other numbers."""
        for name in self.__struct_fields__:
            for key, number in getattr(other, name).items():
                _add(getattr(self, name), key, number)

    @property
    def decisions(self) -> int:
        """How many decisions there are."""
        return sum(self.outcomes.values())

    @property
    def refused(self) -> int:
        """How many of them are refusals."""
        return sum(self.filters.values())

    def quantile(self, share: float) -> float | None:
        """Return what a share of the decisions took at most, in ms.

        It is the upper end of a bucket; None: no duration was measured.
        """
        left = share * sum(self.durations.values())
        for bound, number in sorted(
            (float(bound), number) for bound, number in self.durations.items()
        ):
            left -= number
            if left <= 0:
                return min(bound, 1000 * BUCKETS[-1])
        return None


def _add(numbers: dict[str, int], key: str, number: int = 1) -> None:
    numbers[key] = numbers.get(key, 0) + number


class Rate(NamedTuple):
    """What a run of a daemon decided in a minute.

    :ivar at: its begin
    """

    at: float
    daemon: str
    counts: Counts


class RateCounter:
    """Counts what a daemon decides, and stores it minute by minute.

    A row is written once a minute begins to have decisions, and when it ends.
    """

    def __init__(self) -> None:
        self._run = secrets.randbits(62)
        self._begin()

    def _begin(self) -> None:
        self._counts = Counts()
        # The minute of the counts, and the monotonic time of its end, as far
        # as they are known.
        self._minute: int | None = None
        self._ends_at = 0.0

    def count(self, decisions: Iterable[Decision]) -> None:
        """Add decisions that were stored."""
        for decision in decisions:
            self._counts.count(decision)

    def store(self, write: _Write, daemon: str, is_last: bool = False) -> None:
        """Store the counts where that is due.

        :param write: runs work in a transaction, twice if need be
        :param daemon: its name
        :param is_last: no decisions follow
        :raises StoreUnavailable: the database does not answer
        """
        is_due = is_last or time.monotonic() >= self._ends_at
        if not self._counts.outcomes or not is_due:
            return
        minute = self._minute
        document = msgspec.json.encode(self._counts).decode()

        def work(writer: Writer) -> float:
            now = clock.read(writer.conn)
            at = int(now // MINUTE_S) if minute is None else minute
            row = at, self._run, daemon[:NAME_LENGTH], document
            key = ('minute', 'run')
            rows.insert_packed(
                writer.conn, 'decision_rates', _RATES, [row], key=key
            )
            return now

        now = write(work)
        if minute is None:
            self._minute = int(now // MINUTE_S)
            self._ends_at = time.monotonic() + MINUTE_S - now % MINUTE_S
        else:
            self._begin()


def between(
    conn: Connection, since: float, until: float | None = None
) -> list[Rate]:
    """Return the rates of the minutes that began in a time, oldest first.

    :param until: None: until now
    """
    columns = schema.decision_rates.c
    query = sa.select(columns.minute, columns.daemon, columns.document)
    query = query.where(columns.minute >= since / MINUTE_S)
    if until is not None:
        query = query.where(columns.minute < until / MINUTE_S)
    order = columns.minute, columns.daemon, columns.run
    decode = msgspec.json.Decoder(Counts).decode
    return [
        Rate(minute * MINUTE_S, daemon, decode(document))
        for minute, daemon, document in conn.execute(query.order_by(*order))
    ]


def listing(
    conn: Connection, since: moments.Moment, until: moments.Moment | None
) -> list[dict[str, Any]]:
    """Return rates as rows of a list, oldest first.

    :return: minute, daemon, decisions, refused, p50_ms, p99_ms, and the
        fields of :class:`Counts`
    """
    now = clock.read(conn)
    ends = None if until is None else moments.stamp(until, now)
    return [
        {
            'minute': moments.text(rate.at),
            'daemon': rate.daemon,
            'decisions': rate.counts.decisions,
            'refused': rate.counts.refused,
            'p50_ms': rate.counts.quantile(0.5),
            'p99_ms': rate.counts.quantile(0.99),
            **msgspec.structs.asdict(rate.counts),
        }
        for rate in between(conn, moments.stamp(since, now), ends)
    ]


def record_zones(writer: Writer, usage: Iterable[Any]) -> float:
    """Record how full zones are, unless that was done in these ten minutes.

    :param usage: of the type :class:`headroom.ZoneUsage`
    :return: in how many seconds the next ten minutes begin
    """
    now, columns = clock.read(writer.conn), schema.zone_usage.c
    period = int(now // PERIOD_S)
    recorded = sa.select(columns.period).where(columns.period == period)
    values = {
        (use.zone[:NAME_LENGTH], use.resource_class, period): (
            round(use.capacity), round(use.used), round(use.out),
        )
        for use in usage
    }  # fmt: skip
    if values and writer.conn.execute(recorded.limit(1)).first() is None:
        rows.insert_packed(
            writer.conn, 'zone_usage', _USAGE,
            [(*key, *amounts) for key, amounts in values.items()],
        )  # fmt: skip
    return PERIOD_S - now % PERIOD_S


def trends(
    conn: Connection, places: Sequence[tuple[str, str]], since: float
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return how full some zones were of a resource class, oldest first.

    :param places: zones, each with a resource class
    :return: by zone and class: the times, and what was used or unavailable
        in percent of the capacity
    """
    columns = schema.zone_usage.c
    series = defaultdict(list)
    for place in places:
        zone, name = place
        query = sa.select(schema.zone_usage).where(
            columns.zone == zone[:NAME_LENGTH],
            columns.resource_class == name,
            columns.period >= since / PERIOD_S,
            columns.capacity > 0,
        )
        for row in conn.execute(query.order_by(columns.period)):
            full = 100 * (row.used + row.unavailable) / row.capacity
            series[place].append((row.period * PERIOD_S, full))
    return series


def prune(writer: Writer, before: float) -> None:
    """Delete the rates and the use of zones before a time."""
    for column, seconds in (
        (schema.decision_rates.c.minute, MINUTE_S),
        (schema.zone_usage.c.period, PERIOD_S),
    ):
        old = sa.delete(column.table).where(column < int(before // seconds))
        writer.conn.execute(old)
