"""The frame of all pages: templates, static files, headers, errors.

Any thread may call a :class:`Frame`. Templates escape every value, and show
what cannot be seen, such as control characters, as text.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import http
import pathlib
import time
from collections.abc import Callable, Collection
from typing import Any
from urllib import parse

import jinja2
import msgspec

from scheduler_service import moments, texts
from scheduler_service.http.message import JSON, HttpRequest, Reply
from scheduler_service.http.routes import Route
from scheduler_service.scheduler import Scheduler

HTML = 'text/html; charset=utf-8'
# The threads that pages share.
THREADS = 'pages'
_READ = ('GET', 'HEAD')
_FOLDER = pathlib.Path(__file__).parent
_TYPES = {
    '.css': 'text/css',
    '.js': 'text/javascript',
    '.svg': 'image/svg+xml',
}
# Nothing is loaded from elsewhere, run inline, framed or kept.
_SAFETY = (
    (
        'Content-Security-Policy',
        "default-src 'none'; style-src 'self'; script-src 'self'; "
        "img-src 'self'; form-action 'self'; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
    ),
    ('Referrer-Policy', 'no-referrer'),
    ('X-Content-Type-Options', 'nosniff'),
    ('Cross-Origin-Resource-Policy', 'same-origin'),
    ('Cache-Control', 'no-store'),
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
    '/fit': 'Fit',
}


def visible(value: Any) -> Any:
    """Return a value for a template; a text so that all of it is seen."""
    is_text = isinstance(value, str) and not hasattr(value, '__html__')
    return texts.printable(value) if is_text else value


class Frame:
    """Makes pages of templates.

    :param scheduler: whose condition stands on every page
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / 'templates'),
            autoescape=True,
            auto_reload=False,
            finalize=visible,
            lstrip_blocks=True,
            trim_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._templates.filters['path'] = functools.partial(
            parse.quote, safe=''
        )
        self._templates.filters['cell'] = texts.cell
        self._templates.globals['menu'] = MENU
        self._static = {
            f'/static/{path.name}': _static(path)
            for path in sorted((_FOLDER / 'static').iterdir())
        }
        self._names = {'/', *MENU}

    def route(self, path: str, serve: Callable[[HttpRequest], Reply]) -> Route:
        """Return the route of a page."""
        self._names.add(path)
        return Route(
            path, lambda request, _: serve(request), THREADS, 0, _READ
        )

    def static_routes(self) -> list[Route]:
        """Return the routes of the files that pages need."""
        return [
            Route(path, lambda *_, reply=reply: reply, '', 0, _READ)
            for path, reply in self._static.items()
        ]

    def page(self, template: str, status: int = 200, **values: Any) -> Reply:
        """Return a page.

        :param template: name of its file
        :param values: what the template shows
        """
        # Who is not admitted is told nothing else.
        is_admitted = status not in (401, 403)
        text = self._templates.get_template(template).render(
            values,
            conditions=self._conditions() if is_admitted else (),
            now=moments.text(time.time()),
        )
        return Reply(status, text.encode(), HTML, _SAFETY)

    def file(self, body: bytes, kind: str) -> Reply:
        """Return what a page loads beside its static files."""
        return Reply(200, body, kind, _SAFETY)

    def _conditions(self) -> list[tuple[str, str]]:
        """Return what is wrong with the daemon, each with since when."""
        now = time.time()
        return [
            (text, moments.text(now - seconds))
            for text, seconds in self._scheduler.health.degradations()
        ]

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
            near = difflib.get_close_matches(request.path, self._names, 1)
            if near:
                error['message'] += f'; is {near[0]} meant?'
        phrase = http.HTTPStatus(reply.status).phrase
        shown = self.page(
            'error.html', reply.status, error=error, phrase=phrase
        )
        return Reply(
            reply.status, shown.body, HTML, (*shown.headers, *reply.headers)
        )

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


def _static(path: pathlib.Path) -> Reply:
    kind = f'{_TYPES[path.suffix]}; charset=utf-8'
    return Reply(200, path.read_bytes(), kind, _SAFETY)


def without_empty(request: HttpRequest, names: Collection[str]) -> HttpRequest:
    """Return a request without those parameters that a form left empty.

    :param names: of the form's fields
    """
    sent = parse.parse_qsl(request.query, keep_blank_values=True)
    filled = [pair for pair in sent if pair[1] or pair[0] not in names]
    return dataclasses.replace(request, query=parse.urlencode(filled))
