"""Readiness of the daemon.

Served by a thread of ``http.routes``, which reads the engine's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import falcon

from scheduler_service.engine.scheduler import Scheduler

_MAX_SNAPSHOT_AGE_S = 30.0


class Ready:
    """``/readyz``: what has to be there, by name; 503 if one is bad.

    :param more: checks of adapters by name
    """

    def __init__(
        self, scheduler: Scheduler, more: Mapping[str, Callable[[], bool]]
    ) -> None:
        self._scheduler = scheduler
        self._more = more

    def on_get(self, req: Any, resp: Any) -> None:
        """Check each, and answer with all of them."""
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
            # The name before the rename, kept for one release.
            'suffering': status['degraded'],
        }
        if not all(checks.values()):
            resp.status = falcon.HTTP_503

    # Load balancers ask for the status alone; the server leaves the body out.
    on_head = on_get
