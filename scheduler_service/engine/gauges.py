"""What is measured when somebody looks: use, claims, caches, versions.

Any thread may ask. Claims are counted in the database, on a thread of their
own that runs for that moment: a database that does not answer keeps nobody
waiting who asks.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Callable
from importlib import metadata

from scheduler_service import errors
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine import usage
from scheduler_service.engine.health import DATABASE, Health
from scheduler_service.engine.host_scheduler import HostScheduler
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import claim_counts

LOG = logging.getLogger(__name__)
BROKER = 'broker'
# Claims are counted at most so often, in seconds, and so seldom that it takes
# at most this share of the time.
_INTERVAL_S = 30.0
_SHARE = 0.01
_LIBRARIES = ('oslo.messaging', 'SQLAlchemy', 'numpy')


class Gauges:
    """Answers what the state of a daemon is, as plain values.

    :param snapshot: gives the newest snapshot
    """

    def __init__(
        self,
        store: Store,
        snapshot: Callable[[], Snapshot | None],
        hosts: HostScheduler,
        loop: EngineLoop,
        health: Health,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._hosts = hosts
        self._loop = loop
        self._health = health
        self._counting = threading.Lock()
        self._claims: dict[tuple[str, str], int] = {}
        self._count_at = 0.0

    def usage(self) -> list[usage.Usage]:
        """Return how full the zones are, by resource class."""
        return usage.by_zone(self._snapshot(), self._hosts.pipeline.settings)

    def claims(self) -> dict[tuple[str, str], int]:
        """Return the last counts of claims by (state, age).

        They may be a minute old; empty before the first count. Asking has
        them counted again, for the next time, if it is due.
        """
        if time.monotonic() >= self._count_at and self._counting.acquire(
            blocking=False
        ):
            threading.Thread(
                target=self._count, name='claim-counts', daemon=True
            ).start()
        return dict(self._claims)

    def _count(self) -> None:
        started = time.monotonic()
        try:
            with self._store.reading() as conn:
                self._claims = claim_counts.count(conn)
        except errors.SchedulerError:
            # The engine's thread logs that the database does not answer. What
            # was counted before is not true any more.
            self._claims = {}
        except Exception:
            LOG.exception('Claims could not be counted')
            self._claims = {}
        finally:
            took = time.monotonic() - started
            self._count_at = time.monotonic() + max(_INTERVAL_S, took / _SHARE)
            self._counting.release()

    def batches(self) -> tuple[int, int]:
        """Return how many batches were decided, and requests in them."""
        return self._loop.batches, self._loop.requests

    def rankings(self) -> dict[str, int]:
        """Return how many rankings the search cache made, and did not."""
        cache = self._hosts.pipeline.cache
        if cache is None:
            return {}
        return {'hit': cache.hits, 'miss': cache.misses}

    def connected(self) -> dict[str, bool]:
        """Return whether database and broker can be reached."""
        return {
            name: not self._health.is_degraded(name)
            for name in (DATABASE, BROKER)
        }

    def versions(self) -> dict[str, str]:
        """Return versions by the names of what they are of."""
        found = {
            name.lower().replace('.', '_'): metadata.version(name)
            for name in _LIBRARIES
        }
        return {
            'version': metadata.version('scheduler-service'),
            'tables': schema.VERSION,
            'database': self._store.dialect,
            'python': platform.python_version(),
            **found,
        }
