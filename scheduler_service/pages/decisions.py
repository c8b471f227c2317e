"""Pages about decisions: the newest ones, and what led to one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib import parse

from scheduler_service import errors, texts
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import CRITERIA, parameters
from scheduler_service.model import documents, plain
from scheduler_service.pages import words
from scheduler_service.pages.frame import Frame, without_empty
from scheduler_service.pipeline.explain import decisive_filter
from scheduler_service.store.records import decision_list
from scheduler_service.store.records.decisions import OF_ONE

# A question is a link; servers and proxies take no longer ones. In bytes.
MOST_BYTES = 6000
# Decisions of which the list says what was asked for.
_LINES = 100
_OUTCOMES = ['refused', 'chosen', 'ordered', 'passed', *errors.names()]
_COLUMNS = [
    'created_at', 'outcome', 'asked', 'request_id', 'kind', 'project_id',
    'hosts', 'instances',
]  # fmt: skip


def listing(frame: Frame, request: HttpRequest) -> Reply:
    """Show the newest decisions that match."""
    wanted = without_empty(request, CRITERIA)
    found = frame.api.decisions(wanted, b'')
    asked = dict(parse.parse_qsl(wanted.query))
    rows, older = found['decisions'], None
    lines = frame.listings.asked([row['id'] for row in rows[:_LINES]])
    for row in rows:
        row['outcome'] = words.outcome(row)
        if row['times'] > 1:
            row['outcome'] += f', {row["times"]:,} times'
        row['kind'] = words.kind(row['kind'])
        row['asked'] = lines.get(row['id'], '')
    if found['more']:
        older = parse.urlencode({**asked, 'before': rows[-1]['id']})
    return frame.page(
        'decisions.html', asked=asked, rows=rows, older=older,
        columns=decision_list.shown(_COLUMNS, rows), outcomes=_OUTCOMES,
        remarks=found['remarks'],
    )  # fmt: skip


def decision(frame: Frame, request: HttpRequest) -> Reply:
    """Show the decisions on a request, and why not on a host."""
    host = parameters(without_empty(request, ['host']), 'host').get('host')
    bare = dataclasses.replace(request, query='')
    found = frame.api.decision(bare, b'')['decisions']
    again = _again(found[-1])
    text = again and documents.dump(again, 'yaml').decode()
    query, nodes = parse.urlencode({'request': text}), None
    if host and again:
        nodes = explained(frame, request, again, host)['nodes']
    for each in found:
        facts = each.get('error', {}).get('facts', {})
        each['filter'] = decisive_filter(facts)
    return frame.page(
        'decision.html', decisions=found, host=host or '', nodes=nodes,
        recorded=found[-1].get('recorded'),
        text=text, link=len(query) <= MOST_BYTES and f'/try?{query}',
        stacks=stacks,
    )  # fmt: skip


def _again(decision: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request of a decision as it can be tried again."""
    request = decision.get('request')
    if request is None or decision['kind'] == 'schedule_zone':
        return None
    return {name: request[name] for name in request if name not in OF_ONE}


def explained(
    frame: Frame, request: HttpRequest, document: Any, host: str | None
) -> Any:
    """Return what would be selected now, and why.

    :raises HostNotFound: there is no such host; the nearest one is named
    """
    try:
        return plain(frame.api.explained(request, document, host))
    except errors.HostNotFound as error:
        table = frame.listings.table()
        names = [table.host_at(row) for row in range(len(table))]
        near = texts.nearest(host or '', names)
        raise errors.HostNotFound(
            f'{error.args[0]}{near}', **error.facts
        ) from None


def stacks(finalists: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield (host, parts) of the weights of the best hosts, for a chart.

    A part is (weigher, weight, x, width), both in percent of the widest row;
    weights below 0 are left of those above.
    """
    weights = [
        {
            name: weight if math.isfinite(weight) else 0.0
            for name, weight in each['weights'].items()
        }
        for each in finalists
    ]
    low = max(-sum(w for w in row.values() if w < 0) for row in weights)
    high = max(sum(w for w in row.values() if w > 0) for row in weights)
    scale = 100 / ((low + high) or 1.0)
    for each, row in zip(finalists, weights, strict=True):
        left = right = low
        parts = []
        for name, weight in row.items():
            left, right = left + min(weight, 0), right + max(weight, 0)
            start = left if weight < 0 else right - weight
            x, width = round(start * scale, 2), round(abs(weight) * scale, 2)
            parts.append((name, weight, x, width))
        yield each, parts
