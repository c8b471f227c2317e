"""What the daemon does: for ``ping``, metrics, the state report, the watchdog.

Any thread may call it. The engine writes its data meanwhile: other threads may
read values of different moments, and never wait for the engine. Claims are
counted in the database by a short-lived thread, so that callers never wait for
the database.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from scheduler_service import errors, moments
from scheduler_service.engine.cycle import HostCycle
from scheduler_service.engine.health import DATABASE, Health
from scheduler_service.engine.jobs import ClaimsJob, HostJob, Job, ZoneJob
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.planning import headroom
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.ports.host_source import StoreHostSource

LOG = logging.getLogger(__name__)
BROKER = 'broker'
_JOBS_SHOWN = 50
_LANES_SHOWN = 20
_ZONES_SHOWN = 5
# Shortest time between two counts of the claims, in seconds, and the largest
# share of the time that counting may take: the database has more to do.
_INTERVAL_S = 30.0
_SHARE = 0.01
# Suppresses the errors of reading while another thread writes.
_READING = contextlib.suppress(RuntimeError, IndexError, KeyError)
_LIBRARIES = ('oslo.messaging', 'SQLAlchemy', 'numpy')


class Introspection:
    """A look into a running engine, as plain values.

    :ivar is_shadow: whether it decides copies of another scheduler's requests
    """

    def __init__(
        self,
        queue: RequestQueue,
        loop: EngineLoop,
        hosts: HostCycle,
        source: StoreHostSource,
        health: Health,
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._hosts = hosts
        self._source = source
        self._health = health
        self._turns_before = -1
        self._moved_at = time.monotonic()
        self._counting = threading.Lock()
        self._claims: dict[tuple[str, str], int] = {}
        self._count_at = 0.0
        # Of those on the topic, how many have another configuration, and how
        # many another store; the thread of the register counts them.
        self._release = metadata.version('scheduler-service')
        self.daemons_differing = 0
        self.daemons_elsewhere = 0
        self.is_shadow = False

    # ``ping``, readiness and metrics.

    def status(self) -> dict[str, Any]:
        """Return how the engine is: what it holds, what waits, counters."""
        snapshot = self._source.snapshot
        age = time.monotonic() - self._source.refreshed_at
        up, enabled = [
            int(snapshot.hosts.number(name).sum()) if snapshot else 0
            for name in ('up', 'enabled')
        ]
        hosts = len(snapshot.hosts) if snapshot else 0
        degraded = self._health.degradations()
        longest = max((seconds for _, seconds in degraded), default=None)
        return {
            'release': self._release,
            'shadow': self.is_shadow,
            'hosts': hosts,
            'hosts_up': up,
            'hosts_disabled': hosts - enabled,
            'pools': len(snapshot.pools) if snapshot else 0,
            'revision': snapshot.revision if snapshot else 0,
            'snapshot_age': round(age, 3) if snapshot else None,
            'waiting': len(self._queue),
            'database': 'up' if self._health.database_reachable else 'away',
            'daemons_differing': self.daemons_differing,
            'daemons_elsewhere': self.daemons_elsewhere,
            'reload_refused': self._health.is_degraded('reload'),
            'batches': self._loop.batches,
            'requests': self._loop.requests,
            'degraded': [text for text, _ in degraded],
            'degraded_since': (
                longest and moments.text(time.time() - longest)
            ),
            'counters': self._health.counters(),
        }

    def recent(self) -> dict[str, Any]:
        """Return the last minute's figures, and the fullest zones.

        :return: as of :meth:`Health.recent`, and ``zones``: zone, resource,
            free, and in percent full and out, which is a part of that
        """
        zones = itertools.islice(self._fullest(), _ZONES_SHOWN)
        return {**self._health.recent(), 'zones': [*zones]}

    def fullest_zones(self) -> list[dict[str, Any]]:
        """Return each zone with what runs out first there, the fullest first.

        :return: as ``zones`` of :meth:`recent`
        """
        zones: dict[str, dict[str, Any]] = {}
        for row in self._fullest():
            zones.setdefault(row['zone'], row)
        return [*zones.values()]

    def _fullest(self) -> Iterator[dict[str, Any]]:
        fullest = sorted(
            (use for use in self.usage() if use.capacity > 0),
            key=headroom.ZoneUsage.shares_left,
        )
        for use in fullest:
            yield {
                'zone': use.zone,
                'resource': use.resource_class,
                'free': round(use.free),
                'full': round(100 * (1 - use.free / use.capacity), 1),
                'out': round(100 * use.out / use.capacity, 1),
            }

    # Metrics that are measured at the moment when they are read.

    def usage(self) -> list[headroom.ZoneUsage]:
        """Return how full the zones are, by resource class."""
        snapshot = self._source.snapshot
        table = None if snapshot is None else snapshot.hosts
        return headroom.by_zone(table, self._hosts.pipeline.settings)

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
        # What was counted before is not true any more where this fails.
        counts: dict[tuple[str, str], int] = {}
        try:
            with self._source.store.reading() as conn:
                counts = claim_queries.count(conn)
        except errors.SchedulerError:
            # The engine's thread logs that the database does not answer.
            LOG.debug('Claims are not counted')
        except Exception:
            LOG.exception('Claims could not be counted')
        finally:
            self._claims = counts
            took = time.monotonic() - started
            self._count_at = time.monotonic() + max(_INTERVAL_S, took / _SHARE)
            self._counting.release()

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
        return {
            'version': metadata.version('scheduler-service'),
            'tables': schema.VERSION,
            'database': self._source.store.dialect,
            'python': platform.python_version(),
            **{
                name.lower().replace('.', '_'): metadata.version(name)
                for name in _LIBRARIES
            },
        }

    # The watchdog.

    def stalled_for(self) -> float:
        """Return for how many seconds the engine has not moved.

        It moves while its loop turns, while it selects, while it waits for
        an answer of the database, and while it loads. One thread calls this,
        often enough to see each of these.
        """
        turns = self._loop.turns + self._hosts.select.selections
        if (
            turns != self._turns_before
            or self._source.loading
            or self._source.is_waiting()
        ):
            self._turns_before = turns
            self._moved_at = time.monotonic()
        return time.monotonic() - self._moved_at

    # The state report.

    def snapshot(self) -> Mapping[str, Any]:
        """Return the size, the revision and the age of the snapshot."""
        snapshot = self._source.snapshot
        if snapshot is None:
            return {'loaded': False, 'loading': self._source.loading}
        return {
            'loaded': True,
            'loading': self._source.loading,
            'hosts': len(snapshot.hosts),
            'pools': len(snapshot.pools),
            'instances': len(snapshot.hosts.instances),
            'revision': snapshot.revision,
            'age': _seconds(self._source.refreshed_at),
        }

    def queue(self) -> Mapping[str, Any]:
        """Return what waits, by lane, the longest lanes first."""
        lanes: list[Any] = []
        with _READING:
            lanes = self._queue.lanes()
        return {
            'waiting': len(self._queue),
            'at_most': self._queue.size,
            'closed': self._queue.closed,
            'lanes': [
                {'lane': str(lane)[:100], 'waiting': count}
                for lane, count in lanes[:_LANES_SHOWN]
            ],
        }

    def under_way(self) -> Mapping[str, Any]:
        """Return what was taken from the queue and has no result yet."""
        jobs: list[Job] = []
        with _READING:
            jobs = [job for job in self._queue.taken() if not job.done()]
        return {
            'loop_turns': self._loop.turns,
            'last_turn': f'{_seconds(self._loop.turned_at)} ago',
            'claim_is_sent': self._source.pending is not None,
            'waits_for_the_database': self._source.is_waiting(),
            'requests': len(jobs),
            'first': [_described(job) for job in jobs[:_JOBS_SHOWN]],
        }

    def extenders(self) -> Mapping[str, Any]:
        """Return the URLs of extenders, and the number of their requests."""
        return self._hosts.facts('extenders') or {'configured': 0}


def _described(job: Job) -> dict[str, Any]:
    facts: dict[str, Any] = {
        'kind': type(job).__name__,
        'state': job.state.name.lower(),
        'since': _seconds(job.queued_at),
        'attempts': job.attempts,
    }
    if isinstance(job, HostJob | ZoneJob):
        facts['request_id'] = job.request.request_id
        facts['project_id'] = job.request.project_id
    if isinstance(job, HostJob):
        facts['instances'] = job.request.num_instances
        facts['placed'] = len(job.attempt.placed)
        facts['with_extenders'] = job.attempt.extender_rounds
    elif isinstance(job, ClaimsJob):
        facts['instances'] = len(job.instances)
    return facts


def _seconds(since: float) -> str:
    return f'{time.monotonic() - since:.1f} s'
