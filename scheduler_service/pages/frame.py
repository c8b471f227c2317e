"""The frame of all pages: templates, static files, headers, errors.

A page is a function of a :class:`Frame` and a request; any thread may call
it. Templates escape every value, and show what cannot be seen, such as control
characters, as text.
"""

from __future__ import annotations

import dataclasses
import http
import pathlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib import parse

import jinja2
import msgspec

from scheduler_service import errors, moments, texts
from scheduler_service.http.message import JSON, HttpRequest, Reply
from scheduler_service.http.routes import READ, Route
from scheduler_service.http.v1 import V1, segment
from scheduler_service.pages import words
from scheduler_service.pages.picture import Pictures
from scheduler_service.scheduler import Scheduler

_HTML = 'text/html; charset=utf-8'
# The threads of a page that takes long; all others share some.
_THREADS = dict.fromkeys(
    ('/why/{request_id}', '/history/{name}', '/drain/{name}'), 'why'
)
# What costs the daemon much also without a query.
_COSTLY = (*_THREADS, '/cloud', '/cloud.png', '/cloud/{block}')
_FOLDER = pathlib.Path(__file__).parent
_TYPES = {
    '.css': 'text/css',
    '.js': 'text/javascript',
    '.svg': 'image/svg+xml',
}
# Nothing is loaded from elsewhere, run inline or framed.
_SAFETY = (
    (
        'Content-Security-Policy',
        "default-src 'none'; style-src 'self'; script-src 'self'; "
        "img-src 'self'; form-action 'self'; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
    ),
    ('Referrer-Policy', 'no-referrer'),
)
# Programs get their errors as JSON.
_OF_PROGRAMS = ('/v1/', '/extender/')
# Pages that every page links, in this order: path -> name.
MENU = {
    '/': 'Overview',
    '/decisions': 'Decisions',
    '/try': 'Try',
    '/cloud': 'Cloud',
    '/hosts': 'Hosts',
}

Page = Callable[['Frame', HttpRequest], Reply]
_T = TypeVar('_T')


def visible(value: Any) -> Any:
    """Return a value for a template; a text so that all of it is seen."""
    is_text = isinstance(value, str) and not hasattr(value, '__html__')
    return texts.printable(value) if is_text else value


class Frame:
    """Makes pages of templates.

    :param scheduler: whose condition stands on every page
    :ivar api: the resources that pages show
    :ivar pictures: of the cloud
    """

    def __init__(self, scheduler: Scheduler, api: V1) -> None:
        self.scheduler = scheduler
        self.listings = scheduler.listings
        self.api = api
        self.pictures = Pictures(scheduler.listings)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / 'templates'),
            autoescape=True,
            auto_reload=False,
            finalize=visible,
            lstrip_blocks=True,
            trim_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._templates.filters['path'] = segment
        self._templates.filters.update(words.FILTERS)
        self._templates.globals['menu'] = MENU
        self._templates.globals['names'] = self.listings.names
        self._names: set[str] = set()

    def routes(self, pages: Mapping[str, Page]) -> list[Route]:
        """Return the routes of pages, and of the files that they load."""
        self._names = set(pages)
        return [
            *(self._route(*each) for each in pages.items()),
            *map(_static, sorted((_FOLDER / 'static').iterdir())),
        ]

    def _route(self, path: str, page: Page) -> Route:
        return Route(
            path, lambda request, _: page(self, request),
            _THREADS.get(path, 'pages'), 0, READ,
            is_linked=path not in _COSTLY,
        )  # fmt: skip

    def stored(self, read: Callable[[], _T]) -> tuple[_T | None, str]:
        """Return what the database has; or None, and why that is missing."""
        try:
            return read(), ''
        except errors.StoreUnavailable as fault:
            return None, str(fault.args[0])

    def page(self, template: str, status: int = 200, **values: Any) -> Reply:
        """Return a page.

        :param template: name of its file
        :param values: what the template shows
        """
        now = time.time()
        degraded = self.scheduler.health.degradations()
        text = self._templates.get_template(template).render(
            values,
            # Who is not admitted is told nothing else.
            conditions=[] if status in (401, 403) else [
                (text, moments.text(now - age)) for text, age in degraded
            ],
            shadow=self.scheduler.introspection.is_shadow,
            now=moments.text(now),
        )  # fmt: skip
        return Reply(status, text.encode(), _HTML, _SAFETY)

    def show_error(self, request: HttpRequest, reply: Reply) -> Reply:
        """Return an error as a page, if it is one for people.

        :param reply: an error, as JSON or as a page
        """
        if reply.content_type != JSON or not self._is_for_people(request):
            return reply
        error = msgspec.json.decode(reply.body).get('error')
        if error is None:
            return reply
        if error['name'] == 'RouteNotFound':
            error['message'] += texts.nearest(request.path, [*self._names])
        phrase = http.HTTPStatus(reply.status).phrase
        shown = self.page(
            'error.html', reply.status, error=error, phrase=phrase
        )
        headers = (*shown.headers, *reply.headers)
        return dataclasses.replace(shown, headers=headers)

    def _is_for_people(self, request: HttpRequest) -> bool:
        path = request.path.rstrip('/') or '/'
        parent = path.rpartition('/')[0]
        return (
            path in self._names
            or any(name.startswith(f'{parent}/{{') for name in self._names)
            or (
                'text/html' in request.headers.get('Accept', '')
                and not path.startswith(_OF_PROGRAMS)
            )
        )


def file(body: bytes, kind: str) -> Reply:
    """Return what a page loads."""
    return Reply(200, body, kind, _SAFETY)


def _static(path: pathlib.Path) -> Route:
    kind = f'{_TYPES[path.suffix]}; charset=utf-8'
    reply = file(path.read_bytes(), kind)
    return Route(f'/static/{path.name}', lambda *_: reply, '', 0, READ)


def without_empty(request: HttpRequest, names: Collection[str]) -> HttpRequest:
    """Return a request without those parameters that a form left empty.

    :param names: of the form's fields
    """
    sent = parse.parse_qsl(request.query, keep_blank_values=True)
    filled = [pair for pair in sent if pair[1] or pair[0] not in names]
    return dataclasses.replace(request, query=parse.urlencode(filled))
