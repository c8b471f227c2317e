"""``scheduler-manage decision list``, which loads nothing that decides."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, NoReturn

from scheduler_service import texts
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import open_store, read
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.model.inventory import dashed
from scheduler_service.store.records import decision_list
from scheduler_service.store.records.decision_list import (
    OF_PODS,
    DecisionFilter,
)

_COLUMNS = [
    'created_at', 'request_id', 'kind', 'outcome', 'project_id', 'filter',
    'hosts', 'times',
]  # fmt: skip
# By which decisions are counted.
_COUNTED = 'kind', 'outcome', 'filter', 'project_id', 'user_id', 'host'
# How often new decisions are looked for, in seconds.
_FOLLOW_S = 1.0


def listing(args: Any, conf: Any) -> output.Listing:
    """List the newest decisions, or count them, or follow new ones."""
    criteria = DecisionFilter(
        args.since, args.until, args.outcome, args.filter, args.project,
        args.user, args.host, args.pod,
        args.instance and dashed(args.instance), args.request,
    )  # fmt: skip
    if args.by:
        return _count(args, conf, criteria)
    if args.follow:
        return _follow(args, conf, criteria)
    total: int | str | None = None

    def query(conn: Any) -> list[decision_list.DecisionSummary]:
        nonlocal total
        rows = decision_list.search(conn, criteria, output.query_limit(args))
        if not args.sort_columns and len(rows) > args.limit > 0:
            total = decision_list.count(conn, criteria)
        if not rows:
            output.remark(*decision_list.remarks(conn, criteria, '--'))
        return rows

    rows = [row.plain() for row in read(conf, query)]
    columns = decision_list.shown(_COLUMNS, rows)
    more = [name for name in OF_PODS if name not in columns]
    return output.Listing(rows, columns, more, total)


def _count(args: Any, conf: Any, criteria: DecisionFilter) -> output.Listing:
    columns = args.by.split(',')
    unknown = [name for name in columns if name not in _COUNTED]
    if unknown:
        raise WrongUsage(
            f'argument --by: {unknown[0]}: not one of {", ".join(_COUNTED)}'
        )
    counts: Counter[tuple[str, ...]] = Counter()
    for row in read(conf, lambda conn: decision_list.search(conn, criteria)):
        values = {**row._asdict(), 'host': ', '.join(row.hosts)}
        counts[tuple(values[name] or '' for name in columns)] += 1
    rows = [
        {**dict(zip(columns, values, strict=True)), 'decisions': number}
        for values, number in counts.most_common()
    ]
    return output.Listing(rows, [*columns, 'decisions'])


def _follow(args: Any, conf: Any, criteria: DecisionFilter) -> NoReturn:
    if args.formatter not in ('table', 'value') or args.sort_columns:
        raise WrongUsage('argument --follow: prints lines in order of time')
    shown = output.check(args, [*_COLUMNS, *OF_PODS])[0] or _COLUMNS
    last = 0
    with open_store(conf) as store:
        while True:
            with store.reading() as conn:
                rows = decision_list.search(
                    conn, criteria, None if last else args.limit, last
                )
            for row in reversed(rows):
                last = row.id
                values = row.plain()
                output.write(['  '.join(texts.cell(values[name]) or '-'
                                        for name in shown)])  # fmt: skip
            sys.stdout.flush()
            time.sleep(_FOLLOW_S)
