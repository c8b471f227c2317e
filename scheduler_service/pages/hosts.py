"""Pages about hosts: the cloud, a host, and what fits."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Iterable
from typing import Any
from urllib import parse

from scheduler_service import errors, texts
from scheduler_service.http.message import TEXT, HttpRequest, Reply
from scheduler_service.http.v1 import (
    HOST_CRITERIA,
    V1,
    Criteria,
    one_of,
    read_criteria,
)
from scheduler_service.listings import Listings
from scheduler_service.pages import picture
from scheduler_service.pages.frame import Frame, without_empty
from scheduler_service.pages.picture import Picture

# All who look within this time see the same picture, in seconds.
_SHARED_S = 2.0
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


class HostPages:
    """Shows what ``/v1/hosts`` returns, and the cloud as a picture."""

    def __init__(self, frame: Frame, api: V1, listings: Listings) -> None:
        self._frame = frame
        self._api = api
        self._listings = listings
        self._lock = threading.Lock()
        # By place and resource: a picture, and when it was made.
        self._pictures: dict[tuple[str, str | None], tuple[Picture, float]]
        self._pictures = {}

    def listing(self, request: HttpRequest) -> Reply:
        """List the hosts that match."""
        wanted = without_empty(request, HOST_CRITERIA)
        sent = dict(parse.parse_qsl(wanted.query))
        query = wanted.query
        if 'limit' not in sent:
            wanted.query += f'&limit={_HOSTS}'
        found = self._api.hosts(wanted, b'')
        return self._frame.page('hosts.html', sent=sent, query=query, **found)

    def cloud(self, request: HttpRequest) -> Reply:
        """Show all hosts, coloured by how full they are."""
        self._api.authorize(request, 'list_hosts')
        look = read_criteria(without_empty(request, _LOOK), _LOOK)
        by, resource = look.get('by', 'zone'), look.get('resource')
        made = self._picture(by, resource)
        return self._frame.page(
            'cloud.html',
            made=made,
            by=by,
            resource=resource,
            places=picture.PLACES,
            width=picture.WIDTH,
            marks=picture.MARKS,
            levels=zip(
                picture.LEVELS, made.counts, picture.COLOURS, strict=True
            ),
        )

    def image(self, request: HttpRequest) -> Reply:
        """Return the picture of a block."""
        self._api.authorize(request, 'list_hosts')
        look = read_criteria(request, _LOOK)
        made = self._picture(look.get('by', 'zone'), look.get('resource'))
        block = look.get('block', '')
        _check('block', block, made.blocks)
        return self._frame.file(made.png(block), 'image/png')

    def cell(self, request: HttpRequest) -> Reply:
        """Lead to the host at a point of a block, or tell its name.

        The query is ``X,Y``, as browsers send it of a click on a picture, or
        ``X,Y,name``, as the script asks.
        """
        self._api.authorize(request, 'list_hosts')
        place = parse.unquote(request.path.rpartition('/')[2])
        by, _, name = place.partition(':')
        point = _POINT.fullmatch(parse.unquote(request.query))
        if point is None:
            raise errors.InvalidRequest('expected X,Y, a point of the picture')
        _check('by', by, picture.PLACES)
        made = self._picture(by, None)
        _check('block', name, made.blocks)
        row = made.at(name, int(point[1]), int(point[2]))
        if row is None:
            raise errors.NotFound('There is no host at this point')
        host, table = made.table.host_at(row), made.table
        if not point[3]:
            path = f'/hosts/{parse.quote(host, safe="")}'
            return Reply(302, b'', headers=(('Location', path),))
        state = 'up' if table.number('up')[row] else 'down'
        enabled = 'enabled' if table.number('enabled')[row] else 'disabled'
        level = picture.LEVELS[made.levels[row]]
        told = texts.printable(f'{host}: {state}, {enabled}, {level}')
        return self._frame.file(told.encode(), TEXT)

    def host(self, request: HttpRequest) -> Reply:
        """Show a host, its claims and what was last decided about it."""
        name = parse.unquote(request.path.rstrip('/').rpartition('/')[2])
        found: dict[str, Any] = {'missing': None, 'nodes': [], 'claims': []}
        refused: list[Any] = []
        try:
            found |= self._api.host(request, b'')
            # The filters of these judged this host, too.
            asked = dataclasses.replace(request, query=_REFUSALS)
            refused = self._api.decisions(asked, b'')['decisions']
        except errors.StoreUnavailable as fault:
            found |= self._listings.in_memory(name)
            if not found['resources']:
                raise
            found['missing'] = str(fault.args[0])
        return self._frame.page(
            'host.html', name=name, refused=refused, **found
        )

    def _picture(self, by: str, resource: str | None) -> Picture:
        """Return a picture that is at most two seconds old.

        :raises NotFound: no host offers the resource
        """
        with self._lock:
            now, key = time.monotonic(), (by, resource)
            self._pictures = {
                each: (made, at)
                for each, (made, at) in self._pictures.items()
                if now - at < _SHARED_S
            }
            if key not in self._pictures:
                table = self._listings.table()
                if resource:
                    _check('resource', resource, table.resources)
                made = Picture(table, self._listings.settings, *key)
                self._pictures[key] = made, now
            return self._pictures[key][0]


def _check(what: str, value: str, values: Iterable[str]) -> None:
    """Check that there is something of a name.

    :raises NotFound: there is none; the nearest one is named
    """
    text = texts.nothing_matches(what, value, values)
    if text:
        raise errors.NotFound(text)
