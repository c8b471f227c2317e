"""The falcon application: readiness, metrics and ``/v1``; the form of errors.

Calls for each pod bypass falcon. The main thread builds the application; its
requests run on threads of ``http.routes``.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib import parse

import falcon

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.http import metrics, v1
from scheduler_service.http.access import CREDENTIALS, Guard
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.routes import Route, Router
from scheduler_service.policies import Enforcer
from scheduler_service.scheduler import Scheduler

_WITHOUT_PREFIX = ('CONTENT_TYPE',)
_NOT_PASSED_ON = (
    b'content-length', b'content-encoding', b'transfer-encoding',
)  # fmt: skip


def run(
    app: Any,
    request: HttpRequest,
    content: bytes,
    credentials: Mapping[str, Any],
) -> Reply:
    """Return the reply of an application.

    :param content: the body without its content coding
    :param credentials: of the client, as policy rules read them
    """
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> None:
        started.append((status, headers))

    environ = {**_environ(request, content), CREDENTIALS: credentials}
    body = b''.join(app(environ, start))
    status, headers = started[-1]
    content_type = next(
        (value for name, value in headers if name.lower() == 'content-type'),
        'text/plain',
    )
    further = tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in ('content-type', 'content-length')
    )
    return Reply(int(status[:3]), body, content_type, further)


def _environ(request: HttpRequest, content: bytes) -> dict[str, Any]:
    """Return a request in the form of WSGI."""
    environ: dict[str, Any] = {
        'REQUEST_METHOD': request.method,
        'SCRIPT_NAME': '',
        # Bytes as latin-1: the application decodes them itself.
        'PATH_INFO': parse.unquote_to_bytes(request.path).decode('latin-1'),
        'QUERY_STRING': request.query,
        'SERVER_NAME': 'localhost',
        'SERVER_PORT': '0',
        'SERVER_PROTOCOL': f'HTTP/{request.version}',
        'REMOTE_ADDR': request.client,
        'CONTENT_LENGTH': str(len(content)),
        'wsgi.version': (1, 0),
        'wsgi.url_scheme': 'http',
        'wsgi.input': io.BytesIO(content),
        'wsgi.errors': sys.stderr,
        'wsgi.multithread': True,
        'wsgi.multiprocess': False,
        'wsgi.run_once': False,
    }
    for name, value in request.headers.items():
        # In the environment an underscore would pass for a hyphen.
        if name in _NOT_PASSED_ON or b'_' in name:
            continue
        key = name.decode('latin-1').upper().replace('-', '_')
        if key not in _WITHOUT_PREFIX:
            key = f'HTTP_{key}'
        environ[key] = value.decode('latin-1')
    return environ


_MAX_SNAPSHOT_AGE_S = 30.0


class Ready:
    """``/readyz``: the result of each check; status 503 if any is bad.

    :param more: checks of adapters by name
    """

    def __init__(
        self, scheduler: Scheduler, more: Mapping[str, Callable[[], bool]]
    ) -> None:
        self._scheduler = scheduler
        self._more = more

    def on_get(self, req: Any, resp: Any) -> None:
        """Run all checks, and answer with their results."""
        status = self._scheduler.status()
        degraded = ' '.join(status['degraded'])
        age = status['snapshot_age']
        checks = {
            'snapshot': age is not None and age < _MAX_SNAPSHOT_AGE_S,
            'database': status['database'] == 'up',
            'bus': 'broker' not in degraded,
            **{name: check() for name, check in self._more.items()},
        }
        resp.media = {
            'ready': all(checks.values()),
            **{name: 'ok' if good else 'bad' for name, good in checks.items()},
            'snapshot_age': age,
            'degraded': status['degraded'],
        }
        if not all(checks.values()):
            resp.status = falcon.HTTP_503

    # Load balancers need only the status; the server leaves the body out.
    on_head = on_get


LOG = logging.getLogger(__name__)
# Paths that never wait; then those that wait for the engine or the database.
_STATUS = ('/readyz', '/metrics')
_API = ('/v1/explain', '/v1/decisions', '/v1/openapi.json')
_DECISION = '/v1/decisions/{request_id}'


def make(
    scheduler: Scheduler,
    routes: Iterable[Route],
    checks: Mapping[str, Callable[[], bool]],
    guard: Guard,
    enforcer: Enforcer,
    group: Any,
    connections: Callable[[], Iterable[Any]],
) -> Router:
    """Return the router of the HTTP server.

    :param routes: of adapters
    :param checks: further checks of readiness, by name
    :param group: options of [http]
    :param connections: returns the metric families of the connections
    """
    app = falcon.App()
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(_serialize)
    app.add_error_handler(errors.SchedulerError, _scheduler_error)
    app.add_error_handler(wire.WireError, _wire_error)
    app.add_error_handler(Exception, _internal_error)
    app.add_route('/readyz', Ready(scheduler, checks))
    app.add_route('/metrics', metrics.Metrics(scheduler, connections))
    v1.add(app, scheduler, enforcer)
    return Router(
        routes,
        functools.partial(
            _route, app, guard, min(group.max_body_bytes, v1.MAX_BYTES)
        ),
        guard,
        scheduler.health,
        lambda: scheduler.snapshot() is not None,
        # Evaluations share a lock: more threads would not be faster.
        {'evaluate': 1, 'status': 1, 'bind': group.threads,
         'api': group.threads},
    )  # fmt: skip


def _route(app: Any, guard: Guard, max_bytes: int, path: str) -> Route:
    """Return the route of a path that falcon serves or answers with 404."""

    def serve(request: HttpRequest, content: bytes) -> Reply:
        return run(app, request, content, guard.credentials(request))

    if path in _STATUS:
        return Route(path, serve, 'status', max_bytes)
    name = path if path in _API else 'other'
    if path.startswith('/v1/decisions/'):
        name = _DECISION
    return Route(name, serve, 'api', max_bytes)


def _serialize(req: Any, resp: Any, fault: Any) -> None:
    """Write an error of the framework in the form of ours."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = wire.encode(
        {
            'error': {
                'name': type(fault).__name__.removeprefix('HTTP'),
                'message': fault.description or fault.title or '',
                'code': fault.status_code,
                'facts': {},
            }
        }
    )


def _scheduler_error(
    req: Any, resp: Any, error: errors.SchedulerError, params: Any
) -> None:
    resp.status = error.code
    resp.content_type = falcon.MEDIA_JSON
    resp.data = wire.encode({'error': error.to_dict()})


def _wire_error(req: Any, resp: Any, fault: Exception, params: Any) -> None:
    _scheduler_error(req, resp, errors.InvalidRequest(str(fault)), params)


def _internal_error(
    req: Any, resp: Any, fault: Exception, params: Any
) -> None:
    if isinstance(fault, falcon.HTTPError | falcon.HTTPStatus):
        raise fault
    LOG.error('%s %s failed', req.method, req.path, exc_info=fault)
    _scheduler_error(
        req, resp, errors.SchedulerError('Internal error'), params
    )
