"""What the faces of the service call: every verb of the scheduler.

Any thread may call it. A verb makes a job, queues it for the engine's
thread, and returns a future at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.extenders import (
    ExtenderDispatcher,
    ExtenderOptions,
)
from scheduler_service.engine.health import Health
from scheduler_service.engine.host_scheduler import HostScheduler
from scheduler_service.engine.host_state_writer import (
    HostStateWriter,
    HostStateWriterOptions,
)
from scheduler_service.engine.jobs import (
    BatchFuture,
    BatchItem,
    ClaimsJob,
    ExplainJob,
    HostJob,
    Job,
    ZoneJob,
)
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.options import EngineOptions
from scheduler_service.engine.quarantine import Quarantine
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.engine.zone_scheduler import ZoneScheduler
from scheduler_service.extender.config import Extender
from scheduler_service.model import (
    Entry,
    Request,
    SelectEntry,
    ZoneEntry,
    ZoneRequest,
)
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.records import decisions

# How long a start waits before it asks an unreachable database again.
_RETRY_S = 0.5


class Scheduler:
    """The scheduler: jobs in, one thread that decides, futures out.

    Results are those of :mod:`scheduler_service.model.reply`; errors those
    of :mod:`scheduler_service.errors`.
    """

    def __init__(
        self,
        store: Store,
        hosts: HostPipeline,
        pools: PoolPipeline,
        options: EngineOptions,
        rng: random.Random | None = None,
    ) -> None:
        rng = rng or random.Random()  # noqa: S311 - a choice, not a secret
        self.health = Health()
        self._store = store
        store.on_retry = partial(self.health.count, 'database_retries')
        self._queue = RequestQueue(options.request_queue_size)
        self._snapshots = SnapshotCache(store, options.snapshot_max_age)
        self._recorder = DecisionRecorder(store, options.decisions_kept)
        self._hosts = HostScheduler(
            self._snapshots,
            hosts,
            self._recorder,
            rng,
            options.claim_retries,
            self.health,
        )
        self._loop = EngineLoop(
            store,
            self._queue,
            self._snapshots,
            self._hosts,
            ZoneScheduler(
                self._snapshots, pools, self._recorder, rng, self.health
            ),
            options,
            self.health,
        )
        self.host_state_writer = HostStateWriter(
            store,
            HostStateWriterOptions(
                options.service_down_time, options.claim_timeout
            ),
            self.health,
        )
        self.quarantine = Quarantine(
            store, options.max_deliveries, self.health
        )
        self._stopping = threading.Event()

    def extend(
        self, extenders: Sequence[Extender], options: ExtenderOptions
    ) -> None:
        """Have extenders asked, from the start on.

        :raises ConfigurationError: their TLS material does not load
        """
        self._hosts.extend(
            ExtenderDispatcher(
                extenders,
                self._hosts.pipeline,
                options,
                self.health,
                lambda job: self._queue.requeue([job]),
                self._hosts.replies.refuse,
            )
        )

    def start(self) -> bool:
        """Load the snapshot, waiting for the database, and start deciding.

        :return: false where the wait was given up, and nothing started
        """
        while not self._stopping.is_set():
            try:
                self._snapshots.load()
            except errors.StoreUnavailable as error:
                self.health.database_failed(error, _RETRY_S)
                self._stopping.wait(_RETRY_S)
            else:
                self.health.database_answered(len(self._queue))
                self._recorder.start()
                self.host_state_writer.start()
                self._loop.start()
                return True
        return False

    def stop(self, timeout: float = 30.0) -> bool:
        """Accept nothing more, and finish what was accepted.

        :param timeout: in seconds
        :return: whether everything was finished
        """
        self._queue.close()
        deadline = time.monotonic() + timeout
        self.cancel_start()
        done = self._loop.stop(timeout)
        self.host_state_writer.stop(max(1.0, deadline - time.monotonic()))
        self._hosts.close()
        self._recorder.stop(max(1.0, deadline - time.monotonic()))
        if done:
            self._snapshots.drop()
        return done

    def cancel_start(self) -> None:
        """End a start that waits for the database."""
        self._stopping.set()

    def select_destinations(
        self,
        request: Request,
        claim: bool = True,
        explain: bool = False,
        deadline: float | None = None,
        move: bool = False,
    ) -> Future[Any]:
        """Select hosts for the instances of a request, and claim them.

        :param deadline: monotonic time after which nobody waits
        :param move: instances keep the places that they have beside it
        :raises ServiceBusy: too many requests wait
        """
        return self._put(
            HostJob(
                request=request.with_ids(),
                claim=claim,
                explain=explain,
                deadline=deadline,
                move=move,
            )
        )

    def schedule_zone(
        self,
        zone: ZoneRequest,
        caller: RequestContext,
        keep: bool = True,
        explain: bool = False,
        deadline: float | None = None,
    ) -> Future[Any]:
        """Choose a pool for a zone, and keep it.

        :raises ServiceBusy: too many requests wait
        """
        return self._put(
            ZoneJob(
                zone=zone.with_ids(),
                caller=caller,
                keep=keep,
                explain=explain,
                deadline=deadline,
            )
        )

    def schedule_many(
        self,
        entries: Sequence[Entry],
        caller: RequestContext,
        deadline: float | None = None,
    ) -> Future[list[BatchItem]]:
        """Schedule entries together; an error for one leaves the others.

        :return: a future of one finished item for each entry, in order
        """
        batch = BatchFuture(len(entries))
        jobs: list[Job] = []
        for entry, item in zip(entries, batch.each, strict=True):
            if isinstance(entry, errors.SchedulerError):
                item.set_exception(entry)
            else:
                jobs.append(_job_of(entry, caller, deadline, item))
        self._queue.put_all(jobs)
        return batch.whole

    def explain(
        self,
        request: Request,
        host: str | None = None,
        deadline: float | None = None,
    ) -> Future[Any]:
        """Say what would happen, and what each filter says of the hosts.

        :raises ServiceBusy: too many requests wait
        """
        job = ExplainJob(request=request, host=host, deadline=deadline)
        return self._put(job)

    def release(
        self, instances: Sequence[str], deadline: float | None = None
    ) -> Future[Any]:
        """Release claims; the future holds those that held something.

        :raises ServiceBusy: too many requests wait
        """
        return self._change_claims(
            lambda writer: lifecycle.release(writer, instances), deadline
        )

    def confirm(
        self, instances: Sequence[str], deadline: float | None = None
    ) -> Future[Any]:
        """Confirm claims; the future holds those that were not before.

        :raises ServiceBusy: too many requests wait
        """

        def work(writer: Writer) -> list[str]:
            where = lifecycle.claimed_hosts(writer.conn, instances)
            return lifecycle.confirm(writer, where)

        return self._change_claims(work, deadline)

    def drop_moves(
        self, instances: Sequence[str], deadline: float | None = None
    ) -> Future[Any]:
        """Release what instances hold where they do not move after all.

        :raises ServiceBusy: too many requests wait
        """
        return self._change_claims(
            lambda writer: lifecycle.drop_moves(writer, instances), deadline
        )

    def _change_claims(
        self, work: Callable[[Writer], Any], deadline: float | None
    ) -> Future[Any]:
        return self._put(ClaimsJob(work=work, deadline=deadline))

    def _put(self, job: Job) -> Future[Any]:
        assert isinstance(job.future, Future)
        self._queue.put(job)
        return job.future

    def status(self) -> dict[str, Any]:
        """Return how the engine is, as plain values."""
        snapshot = self._snapshots.snapshot
        age = time.monotonic() - self._snapshots.refreshed_at
        up = int(snapshot.hosts.number('up').sum()) if snapshot else 0
        return {
            'hosts': len(snapshot.hosts) if snapshot else 0,
            'hosts_up': up,
            'pools': len(snapshot.pools) if snapshot else 0,
            'revision': snapshot.revision if snapshot else 0,
            'snapshot_age': round(age, 3) if snapshot else None,
            'waiting': len(self._queue),
            'database': 'up' if self.health.database_reachable else 'away',
            'batches': self._loop.batches,
            'requests': self._loop.requests,
            'degraded': self.health.degraded,
            # The name before the rename, kept for one release.
            'suffering': self.health.degraded,
            'counters': self.health.counters(),
        }

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot, which the engine goes on to write."""
        return self._snapshots.snapshot

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest decisions, without the reasons.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            return decisions.listing(conn, limit)

    def decision(self, request_id: str) -> list[dict[str, Any]]:
        """Return what was decided under a request id.

        :raises DecisionNotFound: nothing is kept under it
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            return decisions.show(conn, request_id)

    def flush(self) -> None:
        """Write the decisions that wait to be written."""
        self._recorder.flush()


def _job_of(
    entry: SelectEntry | ZoneEntry,
    caller: RequestContext,
    deadline: float | None,
    item: BatchItem,
) -> Job:
    """Return the job of one of many entries."""
    if isinstance(entry, SelectEntry):
        return HostJob(
            future=item, request=entry.request.with_ids(), deadline=deadline
        )
    return ZoneJob(
        future=item,
        zone=entry.zone.with_ids(),
        caller=caller,
        deadline=deadline,
    )
