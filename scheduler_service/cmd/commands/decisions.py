"""``scheduler-manage decision``: what was decided, for whom, and why not."""

from __future__ import annotations

from typing import Any

from scheduler_service.cmd import output, reasons
from scheduler_service.cmd.commands import read, timestamp
from scheduler_service.store.reading import loading
from scheduler_service.store.records import decisions


def listing(args: Any, conf: Any) -> None:
    """List the newest decisions."""
    wanted = decisions.DecisionFilter(
        args.since, args.outcome, args.filter, args.project, args.host
    )
    # Another order than by time has to look at all of them.
    limit = None if args.sort else args.limit or None

    def look(conn: Any) -> list[decisions.DecisionSummary]:
        found = decisions.search(conn, wanted, limit)
        if args.filter and not found:
            # Plug-ins have names of their own: only decisions know them all.
            known = decisions.filters(conn)
            output.nothing_matches('--filter', args.filter, known)
        if args.host and not found:
            known = loading.host_names(conn)
            output.nothing_matches('--host', args.host, known)
        return found

    found = read(conf, look)
    rows = [
        {**one._asdict(), 'created_at': timestamp(one.created_at)}
        for one in found
    ]
    columns = [
        'created_at', 'request_id', 'kind', 'outcome', 'project_id', 'filter',
        'hosts',
    ]  # fmt: skip
    output.listing(rows, columns, args)


def show(args: Any, conf: Any) -> None:
    """Print the decisions on a request with their reasons."""
    rows = read(conf, lambda conn: decisions.show(conn, args.request_id))
    for row in rows:
        row['created_at'] = timestamp(row['created_at'])
    if args.format != 'table':
        output.document(rows, args.format)
        return
    for row in rows:
        _print(row)


def _print(decision: dict[str, Any]) -> None:
    output.say(
        f'{decision["created_at"]}  {decision["kind"]}: {decision["outcome"]}'
    )
    if decision.get('placements'):
        reasons.hosts(decision)
    if decision.get('pool_id'):
        reasons.pool(decision)
    reasons.explanation(decision.get('explanation'))
    if decision.get('error'):
        output.say(output.cell(decision['error']['message']))
        reasons.explanation(decision['error']['facts'])
