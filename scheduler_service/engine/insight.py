"""What the engine is doing: for the watchdog, and for reports to people.

Other threads look at the engine's own here, which it goes on to change: what
they see may be torn, and nothing they do may wait for the engine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from scheduler_service.engine.host_scheduler import HostScheduler
from scheduler_service.engine.jobs import ClaimsJob, HostJob, Job, ZoneJob
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.snapshot_cache import SnapshotCache

_JOBS_SHOWN = 50
_LANES_SHOWN = 20


class Insight:
    """A look into a running engine."""

    def __init__(
        self,
        queue: RequestQueue,
        loop: EngineLoop,
        hosts: HostScheduler,
        snapshots: SnapshotCache,
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._hosts = hosts
        self._snapshots = snapshots
        self._seen = -1
        self._moved_at = time.monotonic()

    def stands_still_for(self) -> float:
        """Return for how many seconds the engine has not moved.

        It moves while its loop turns, while it selects, while it waits for
        an answer of the database, and while it loads. One thread calls this,
        often enough to see each of these.
        """
        turns = self._loop.turns + self._hosts.selections
        if (
            turns != self._seen
            or self._snapshots.loading
            or self._snapshots.is_waiting()
        ):
            self._seen = turns
            self._moved_at = time.monotonic()
        return time.monotonic() - self._moved_at

    def snapshot(self) -> Mapping[str, Any]:
        """Return what is known of the hosts, and since when."""
        snapshot = self._snapshots.snapshot
        if snapshot is None:
            return {'loaded': False, 'loading': self._snapshots.loading}
        return {
            'loaded': True,
            'loading': self._snapshots.loading,
            'hosts': len(snapshot.hosts),
            'pools': len(snapshot.pools),
            'instances': len(snapshot.hosts.instances),
            'revision': snapshot.revision,
            'age': _seconds(self._snapshots.refreshed_at),
        }

    def queue(self) -> Mapping[str, Any]:
        """Return what waits, by lane, the longest lanes first."""
        with _suppressed():
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
        return {'waiting': len(self._queue)}

    def under_way(self) -> Mapping[str, Any]:
        """Return what was taken from the queue and has no result yet."""
        jobs: list[Job] = []
        with _suppressed():
            jobs = [job for job in self._queue.taken() if not job.done()]
        return {
            'loop_turns': self._loop.turns,
            'last_turn': f'{_seconds(self._loop.turned_at)} ago',
            'claim_is_sent': self._snapshots.pending is not None,
            'waits_for_the_database': self._snapshots.is_waiting(),
            'requests': len(jobs),
            'first': [_described(job) for job in jobs[:_JOBS_SHOWN]],
        }

    def extenders(self) -> Mapping[str, Any]:
        """Return which extenders are asked, and about how many requests."""
        asking = self._hosts.replies.extenders
        if asking is None:
            return {'configured': 0}
        urls = asking.urls
        return {
            'configured': len(urls),
            'requests_with_them': asking.pending,
            'urls': list(urls),
        }


def _suppressed() -> contextlib.suppress:
    """Suppress what reading goes wrong with while another thread writes."""
    return contextlib.suppress(RuntimeError, IndexError, KeyError)


def _described(job: Job) -> dict[str, Any]:
    facts: dict[str, Any] = {
        'kind': type(job).__name__,
        'since': _seconds(job.queued_at),
        'attempts': job.attempts,
    }
    if isinstance(job, HostJob):
        facts['request_id'] = job.request.request_id
        facts['project_id'] = job.request.project_id
        facts['instances'] = job.request.num_instances
        facts['placed'] = len(job.placed)
        facts['with_extenders'] = job.extender_rounds
    elif isinstance(job, ZoneJob):
        facts['request_id'] = job.zone.request_id
        facts['project_id'] = job.zone.project_id
    elif isinstance(job, ClaimsJob):
        facts['instances'] = len(job.instances)
    return facts


def _seconds(since: float) -> str:
    return f'{time.monotonic() - since:.1f} s'
