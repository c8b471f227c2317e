"""The application: what is served on which path, and the form of errors.

falcon serves what is not called for each pod: health, metrics and ``/v1``.
Built by the main thread; requests run on threads of ``http.routes``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import falcon

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.http import health, metrics, v1, wsgi
from scheduler_service.http.access import Guard
from scheduler_service.http.message import Reply, Request
from scheduler_service.http.routes import Route, Router
from scheduler_service.policies import Enforcer

LOG = logging.getLogger(__name__)
# Readiness and metrics; then what waits for the engine or the database.
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
    """Return what answers requests.

    :param routes: of adapters
    :param checks: what readiness takes besides, by name
    :param group: options of [http]
    :param connections: gives the metric families of the connections
    """
    app = falcon.App()
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(_serialize)
    app.add_error_handler(errors.SchedulerError, _scheduler_error)
    app.add_error_handler(wire.WireError, _wire_error)
    app.add_error_handler(Exception, _internal_error)
    app.add_route('/readyz', health.Ready(scheduler, checks))
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
        # Evaluations share one lock, so that more threads would be no faster.
        {'evaluate': 1, 'status': 1, 'bind': group.threads,
         'api': group.threads},
    )  # fmt: skip


def _route(app: Any, guard: Guard, max_bytes: int, path: str) -> Route:
    """Return the route of a path that falcon serves, or says is unknown."""

    def serve(request: Request, content: bytes) -> Reply:
        return wsgi.run(app, request, content, guard.credentials(request))

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
