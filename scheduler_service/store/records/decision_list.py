"""Lists of decisions. They read columns, and no document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import moments, texts
from scheduler_service.moments import Moment
from scheduler_service.store import clock, schema
from scheduler_service.store.reading import loading

REFUSED = 'refused'
# Outcomes that are no refusal.
GOOD = ('chosen', 'ordered', 'passed')
# Kinds of decisions on pods start like this, and end with a verb.
POD_KIND = 'pod_'
# What only they have -> the column that has it.
OF_PODS = {'pod': 'caller_request_id', 'scheduling_group': 'global_request_id'}
# How many refusals are looked at, for their filters.
_NEWEST = 500


def lines(names: Sequence[str]) -> str | None:
    """Return names as a text: each is found between two line ends."""
    if not names:
        return None
    text = '\n'.join(names)
    if text.count('\n') >= len(names):
        text = '\n'.join(name.replace('\n', ' ') for name in names)
    return f'\n{text}\n'


def _names(lines: str | None) -> list[str]:
    return lines.split('\n')[1:-1] if lines else []


class DecisionFilter(NamedTuple):
    """Which decisions to list; None: any.

    :ivar since: the earliest time, or the age of the oldest by the
        database's clock
    :ivar until: the latest time, or the age of the newest
    :ivar outcome: ``chosen``, the name of an error, or ``refused``
    :ivar filter: the filter that left no host
    :ivar project: whose request it was
    :ivar user: the id of its caller
    :ivar host: a service host that was chosen
    :ivar pod: ``NAMESPACE/NAME`` of a pod
    :ivar instance: the uuid of an instance of the request
    :ivar request: one of the ids of the request, as in
        :func:`decisions.show`
    :ivar before: only those with a smaller id
    """

    since: Moment | None = None
    until: Moment | None = None
    outcome: str | None = None
    filter: str | None = None
    project: str | None = None
    user: str | None = None
    host: str | None = None
    pod: str | None = None
    instance: str | None = None
    request: str | None = None
    before: int | None = None


class DecisionSummary(NamedTuple):
    """One decision in short.

    :ivar created_at: when it was made, the last time
    :ivar times: how often it was made
    :ivar filter: which left no host; empty: no filter did
    :ivar hosts: service hosts that were chosen
    :ivar instances: uuids, as far as they are stored
    :ivar pod: ``NAMESPACE/NAME``; None: it is on no pod
    :ivar scheduling_group: the same of the pod's group; None: it has none
    """

    created_at: float
    request_id: str
    kind: str
    outcome: str
    project_id: str | None
    user_id: str | None
    filter: str
    hosts: list[str]
    instances: list[str]
    id: int
    times: int
    first_at: float
    pod: str | None
    scheduling_group: str | None

    def plain(self) -> dict[str, Any]:
        """Return it as it is printed, and sent over HTTP."""
        first, last = map(moments.text, (self.first_at, self.created_at))
        return {**self._asdict(), 'created_at': last, 'first_at': first}


_SUMMARY = sa.select(
    *(
        schema.decisions.c[OF_PODS.get(name, name)].label(name)
        for name in DecisionSummary._fields
    )
)


def search(
    conn: Connection,
    criteria: DecisionFilter,
    limit: int | None = None,
    after: int = 0,
) -> list[DecisionSummary]:
    """Return the newest decisions that match, newest first.

    :param limit: the largest number; None: all
    :param after: only those with a larger id
    """
    query = matching(conn, _SUMMARY, criteria, after)
    newest = query.order_by(schema.decisions.c.id.desc()).limit(limit)
    return [_summary(row) for row in conn.execute(newest)]


def count(conn: Connection, criteria: DecisionFilter) -> int:
    """Return how many decisions match."""
    query = sa.select(sa.func.count()).select_from(schema.decisions)
    return int(conn.execute(matching(conn, query, criteria)).scalar_one())


def refusals(conn: Connection, since: Moment) -> list[tuple[str, int]]:
    """Return how often each filter left no host, the most first.

    :param since: the earliest refusal
    :return: the filter, empty where no filter did; and the number
    """
    column, number = schema.decisions.c.filter, sa.func.count()
    query = sa.select(column, number).group_by(column)
    criteria = DecisionFilter(since=since, outcome=REFUSED)
    rows = conn.execute(
        matching(conn, query, criteria).order_by(number.desc())
    )
    return [(name or '', count) for name, count in rows]


def filters(conn: Connection) -> set[str]:
    """Return the names of the filters that refused the newest requests."""
    newest = search(conn, DecisionFilter(outcome=REFUSED), _NEWEST)
    return {summary.filter for summary in newest} - {''}


def remarks(
    conn: Connection, criteria: DecisionFilter, option: str = ''
) -> list[str]:
    """Say of a filter and a host that no decision has what there is.

    :param option: what stands before the names of criteria
    """
    checks = []
    if criteria.filter:
        names = filters(conn)
        checks.append((f'{option}filter', criteria.filter, names))
    if criteria.host:
        names = loading.host_names(conn)
        checks.append((f'{option}host', criteria.host, names))
    sentences = [texts.nothing_matches(*each) for each in checks]
    return [sentence for sentence in sentences if sentence]


def matching(
    conn: Connection, query: Any, criteria: DecisionFilter, after: int = 0
) -> Any:
    """Limit a query to the decisions that match."""
    table = schema.decisions
    now = clock.read(conn)
    if criteria.since is not None:
        first = _first_since(conn, moments.stamp(criteria.since, now))
        after = max(after, first - 1)
    if criteria.until is not None:
        last = _first_since(conn, moments.stamp(criteria.until, now))
        query = query.where(table.c.id < last)
    if criteria.before is not None:
        query = query.where(table.c.id < criteria.before)
    if after:
        query = query.where(table.c.id > after)
    return query.where(*_conditions(conn, criteria))


def _conditions(conn: Connection, criteria: DecisionFilter) -> list[Any]:
    """Return the conditions of all but the time."""
    columns = schema.decisions.c
    conditions = [
        column == value
        for column, value in (
            (columns.filter, criteria.filter),
            (columns.project_id, criteria.project),
            (columns.user_id, criteria.user),
        )
        if value is not None
    ]
    conditions += [
        has(conn, column, name)
        for column, name in (
            (columns.hosts, criteria.host),
            (columns.instances, criteria.instance),
        )
        if name is not None
    ]
    if criteria.pod is not None:
        conditions += [
            columns.caller_request_id == criteria.pod,
            columns.kind.startswith(POD_KIND, autoescape=True),
        ]
    if criteria.request is not None:
        conditions.append(has_id(criteria.request))
    if criteria.outcome == REFUSED:
        conditions.append(columns.outcome.not_in(GOOD))
    elif criteria.outcome is not None:
        conditions.append(columns.outcome == criteria.outcome)
    return conditions


def has(conn: Connection, column: Any, name: str) -> Any:
    """Return the condition that a text of :func:`lines` has a name."""
    is_postgresql = conn.dialect.name == 'postgresql'
    place = sa.func.strpos if is_postgresql else sa.func.instr
    return place(column, f'\n{name}\n') > 0


def has_id(request_id: str) -> Any:
    """Return the condition that a request has an id, one of three."""
    table = schema.decisions
    return sa.or_(
        table.c.request_id == request_id,
        table.c.caller_request_id == request_id,
        table.c.global_request_id == request_id,
    )


def _first_since(conn: Connection, stamp: float) -> int:
    """Return the least id of decisions made at or after a time.

    They are not indexed by time, but made in the order of their ids.
    """
    table = schema.decisions
    ends = sa.select(sa.func.min(table.c.id), sa.func.max(table.c.id))
    low, high = conn.execute(ends).one()
    if low is None:
        return 0
    high += 1
    made_at = sa.select(table.c.id, table.c.created_at).order_by(table.c.id)
    while low < high:
        middle = (low + high) // 2
        row = conn.execute(
            made_at.where(table.c.id >= middle).limit(1)
        ).first()
        if row is None or row.created_at >= stamp:
            high = middle
        else:
            low = row.id + 1
    return int(low)


def shown(
    columns: Iterable[str], rows: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Return the columns of a table, with those of pods where some are."""
    more = [name for name in OF_PODS if any(row[name] for row in rows)]
    return [*columns, *more]


def _summary(row: Any) -> DecisionSummary:
    named = DecisionSummary(*row)
    if not row.kind.startswith(POD_KIND):
        named = named._replace(pod=None, scheduling_group=None)
    return named._replace(
        filter=row.filter or '',
        first_at=row.first_at or row.created_at,
        hosts=_names(row.hosts),
        instances=_names(row.instances),
    )
