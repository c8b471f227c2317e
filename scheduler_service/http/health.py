"""Whether the daemon lives, and whether it is of use right now."""

from __future__ import annotations

from typing import Any

import falcon

from scheduler_service.engine.scheduler import Scheduler

_OLD_S = 30.0


class Alive:
    """``/healthcheck``: the process answers."""

    def on_get(self, req: Any, resp: Any) -> None:
        """Say so."""
        resp.content_type = falcon.MEDIA_TEXT
        resp.text = 'OK'


class Ready:
    """``/readyz``: snapshot, database and bus, each by name; 503 if not."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def on_get(self, req: Any, resp: Any) -> None:
        """Look at each."""
        status = self._scheduler.status()
        degraded = ' '.join(status['degraded'])
        age = status['snapshot_age']
        checks = {
            'snapshot': age is not None and age < _OLD_S,
            'database': status['database'] == 'up',
            'bus': 'broker' not in degraded,
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
