"""The routes of [http]: readiness, metrics, ``/v1``, and those of adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduler_service import extender_wire as wire
from scheduler_service.http import metrics, v1
from scheduler_service.http.access import Guard
from scheduler_service.http.message import HttpRequest, Reply, refusal
from scheduler_service.http.routes import Route, Router
from scheduler_service.policies import Enforcer
from scheduler_service.scheduler import Scheduler

_MAX_SNAPSHOT_AGE_S = 30.0
_READ = ('GET', 'HEAD')


def ready(
    scheduler: Scheduler, more: Mapping[str, Callable[[], bool]]
) -> Reply:
    """Return ``/readyz``: the result of each check; status 503 if any is bad.

    :param more: checks of adapters by name
    """
    status = scheduler.status()
    age = status['snapshot_age']
    checks = {
        'snapshot': age is not None and age < _MAX_SNAPSHOT_AGE_S,
        'database': status['database'] == 'up',
        'bus': 'broker' not in ' '.join(status['degraded']),
        **{name: check() for name, check in more.items()},
    }
    is_ready = all(checks.values())
    document = {
        'ready': is_ready,
        **{name: 'ok' if good else 'bad' for name, good in checks.items()},
        'snapshot_age': age,
        'degraded': status['degraded'],
    }
    return Reply(200 if is_ready else 503, wire.encode(document))


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
    measured = metrics.Metrics(scheduler, connections)
    return Router(
        (
            *routes,
            # These two never wait for the engine or the database.
            Route(
                '/readyz',
                lambda *_: ready(scheduler, checks),
                'status',
                0,
                _READ,
            ),
            Route('/metrics', measured.serve, 'status', 0, _READ),
            *v1.V1(scheduler, guard, enforcer).routes(group.max_body_bytes),
        ),
        Route('other', _not_found, '', v1.MAX_BYTES),
        guard,
        scheduler.health,
        lambda: scheduler.snapshot() is not None,
        # Evaluations share a lock: more threads would not be faster.
        {'evaluate': 1, 'status': 1, 'bind': group.threads,
         'api': group.threads},
    )  # fmt: skip


def _not_found(request: HttpRequest, content: bytes) -> Reply:
    return refusal(404, 'the path is not served', name='RouteNotFound')
