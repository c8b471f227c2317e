"""Pages about hosts: the cloud, a host, and what fits."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from urllib import parse

from scheduler_service import errors, texts
from scheduler_service.http.message import TEXT, HttpRequest, Reply
from scheduler_service.http.v1 import (
    HOST_CRITERIA,
    Criteria,
    named,
    one_of,
    read_criteria,
    segment,
)
from scheduler_service.pages import picture
from scheduler_service.pages.frame import Frame, file, without_empty

_POINT = re.compile(r'(\d{1,6}),(\d{1,6})(,name)?', re.ASCII)
_LOOK: Criteria = {
    'by': (one_of(*picture.PLACES), ''),
    'resource': (str, ''),
    'block': (str, ''),
}
# Rows of a page.
_HOSTS = 200
# The newest requests that no host could take. The time limits how many
# decisions are read where none was refused.
_REFUSALS = 'outcome=NoValidHost&since=1d&limit=10'


def listing(frame: Frame, request: HttpRequest) -> Reply:
    """List the hosts that match."""
    wanted = without_empty(request, HOST_CRITERIA)
    query = wanted.query
    sent = dict(parse.parse_qsl(query))
    if 'limit' not in sent:
        wanted.query += f'&limit={_HOSTS}'
    found = frame.api.hosts(wanted, b'')
    return frame.page('hosts.html', sent=sent, query=query, **found)


def cloud(frame: Frame, request: HttpRequest) -> Reply:
    """Show all hosts, coloured by how full they are."""
    by, resource, _ = _look(frame, without_empty(request, _LOOK))
    made = frame.pictures.get(by, resource)
    return frame.page(
        'cloud.html', made=made, by=by, resource=resource,
        places=picture.PLACES, width=picture.WIDTH, marks=picture.MARKS,
        levels=zip(picture.LEVELS, made.counts, picture.COLOURS, strict=True),
    )  # fmt: skip


def image(frame: Frame, request: HttpRequest) -> Reply:
    """Return the picture of a block."""
    by, resource, block = _look(frame, request)
    made = frame.pictures.get(by, resource)
    picture.check('block', block, made.blocks)
    return file(made.png(block), 'image/png')


def _look(frame: Frame, request: HttpRequest) -> tuple[str, str | None, str]:
    """Return by what the cloud is divided, its resource, and a block."""
    frame.api.authorize(request, 'list_hosts')
    look = read_criteria(request, _LOOK)
    return look.get('by', 'zone'), look.get('resource'), look.get('block', '')


def cell(frame: Frame, request: HttpRequest) -> Reply:
    """Lead to the host at a point of a block, or tell its name.

    The query is ``X,Y``, as browsers send it of a click on a picture, or
    ``X,Y,name``, as the script asks.
    """
    frame.api.authorize(request, 'list_hosts')
    place = parse.unquote(request.path.rpartition('/')[2])
    by, _, name = place.partition(':')
    point = _POINT.fullmatch(parse.unquote(request.query))
    if point is None:
        raise errors.InvalidRequest('expected X,Y, a point of the picture')
    picture.check('by', by, picture.PLACES)
    made = frame.pictures.get(by, None)
    picture.check('block', name, made.blocks)
    row = made.at(name, int(point[1]), int(point[2]))
    if row is None:
        raise errors.NotFound('There is no host at this point')
    host, table = made.table.host_at(row), made.table
    if not point[3]:
        path = f'/hosts/{segment(host)}'
        return Reply(302, b'', headers=(('Location', path),))
    state = 'up' if table.number('up')[row] else 'down'
    enabled = 'enabled' if table.number('enabled')[row] else 'disabled'
    level = picture.LEVELS[made.levels[row]]
    told = texts.printable(f'{host}: {state}, {enabled}, {level}')
    return file(told.encode(), TEXT)


def host(frame: Frame, request: HttpRequest) -> Reply:
    """Show a host, its claims and what was last decided about it."""

    def read() -> dict[str, Any]:
        shown = frame.api.host(request, b'')
        # The filters of these judged this host, too.
        asked = dataclasses.replace(request, query=_REFUSALS)
        return {**shown, 'refused': frame.api.decisions(asked, b'')}

    name = named(request, 'name')
    found, missing = frame.stored(read)
    if found is None:
        found = frame.listings.in_memory(name)
        if not found['resources']:
            raise errors.StoreUnavailable(missing)
    return frame.page('host.html', name=name, missing=missing, **found)
