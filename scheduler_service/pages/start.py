"""The first page, and short lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler_service import texts
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import (
    OFFSET,
    SHADOW_CRITERIA,
    parameters,
    read_criteria,
)
from scheduler_service.listings import Listings
from scheduler_service.pages import picture, timeline
from scheduler_service.pages.frame import Frame, without_empty

_ZONES = 5
_EVENTS = 12
# Of a page of a list.
_ROWS = 200
# Lists by their paths: title, rule of the policy, and what gives the rows.
LISTS: dict[str, tuple[str, str, Callable[[Listings], list[Any]]]] = {
    '/daemons': ('Daemons', 'list_daemons', Listings.daemons),
    '/pools': ('Pools', 'list_hosts', Listings.pools),
    '/dns-zones': ('DNS zones', 'list_hosts', Listings.dns_zones),
}


def overview(frame: Frame, request: HttpRequest) -> Reply:
    """Show whether all is well, else since when, and how full zones are."""
    parameters(request)
    for rule in ('ping', 'list_decisions', 'list_daemons'):
        frame.api.authorize(request, rule)
    fullest = frame.scheduler.introspection.fullest_zones()[:_ZONES]
    places = [(use['zone'], use['resource']) for use in fullest]
    stored, missing = frame.stored(lambda: frame.listings.overview(places))
    engine = frame.scheduler.status()
    shown: dict[str, Any] = {'strip': None, 'problems': []}
    if stored:
        rates, events, now = stored['rates'], stored['events'], stored['now']
        shown = {
            'strip': timeline.Timeline(rates, events, now),
            'problems': _problems(stored['daemons'], engine['degraded']),
            'events': events[: -_EVENTS - 1 : -1],
            'since': _well_since(stored['daemons'], events),
        }
        for use in fullest:
            points = stored['trends'].get((use['zone'], use['resource']))
            if points:
                use['spark'] = timeline.spark(points, now)
                use['change'] = points[-1][1] - points[0][1]
    return frame.page(
        'start.html', stored=stored, missing=missing, engine=engine,
        fullest=fullest, timeline=timeline, **shown,
    )  # fmt: skip


def _well_since(
    daemons: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return since when there is a daemon, and no outage; None: no daemon."""
    starts = [max(row['database'][1], row['broker'][1]) for row in daemons]
    ends = [each['ended_at'] or each['begun_at'] for each in events
            if each['event'] in timeline.LANES['outages']]  # fmt: skip
    return max(min(starts), *ends, 0) if starts else None


def _problems(
    daemons: Sequence[Mapping[str, Any]], own: Sequence[str]
) -> list[tuple[str, Any]]:
    """Return what is wrong with daemons, each with since when, if known.

    :param own: what each page says of the daemon that serves it
    """
    found: list[tuple[str, Any]] = []
    for row in daemons:
        name, others = row['name'], ', '.join(row['other_database'])
        if row['state'] == 'silent':
            found.append((f'{name} is silent', row['last_sign']))
        found += ((f'{name}: {text}', since) for text, since in row['causes']
                  if text not in own)  # fmt: skip
        if row['differs']:
            found.append((f'{name} is configured differently than most', None))
        if others:
            text = f'{name} has another database than {others} on its topic'
            found.append((text, None))
    return found


def listing(frame: Frame, request: HttpRequest) -> Reply:
    """Show a part of a list, in the order of a column."""
    title, rule, read = LISTS[request.path.rstrip('/')]
    frame.api.authorize(request, rule)
    sent = read_criteria(request, {'sort': (str, ''), 'offset': OFFSET})
    rows, offset = read(frame.listings), sent.get('offset', 0)
    order = sent.get('sort', '')
    column, columns = order.removeprefix('-'), [*rows[0]] if rows else ['name']
    if column:
        picture.check('sort', column, columns)
        rows.sort(
            key=lambda row: texts.cell(row[column]),
            reverse=order.startswith('-'),
        )
    shown = rows[offset : offset + _ROWS]
    return frame.page(
        'list.html', title=title, rows=shown, columns=columns, sent=sent,
        size=_ROWS, more=len(rows) > offset + _ROWS,
    )  # fmt: skip


def shadow(frame: Frame, request: HttpRequest) -> Reply:
    """Show how decisions of a shadow compare with another scheduler's."""
    found = frame.api.shadow(without_empty(request, SHADOW_CRITERIA), b'')
    rows = found['shadow']
    columns = [*rows[0]] if rows else ['verdict']
    return frame.page(
        'list.html', title=found['summary'], rows=rows, columns=columns
    )
