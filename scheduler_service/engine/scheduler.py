"""The scheduler: inbox in, one thread that decides, futures out."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from scheduler_service import errors
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.extenders import (
    ExtenderDispatcher,
    ExtenderOptions,
)
from scheduler_service.engine.health import Health
from scheduler_service.engine.host_state_writer import (
    HostStateWriter,
    HostStateWriterOptions,
)
from scheduler_service.engine.hosts import HostScheduler
from scheduler_service.engine.options import EngineOptions
from scheduler_service.engine.quarantine import Quarantine
from scheduler_service.engine.queue import (
    BatchFuture,
    BatchItem,
    ClaimsJob,
    ExplainJob,
    HostJob,
    Job,
    RequestQueue,
    ZoneJob,
)
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.engine.zones import ZoneScheduler
from scheduler_service.extender.config import Extender
from scheduler_service.model import (
    Entry,
    Request,
    SelectEntry,
    ZoneEntry,
    ZoneRequest,
)
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.store import decisions, lifecycle
from scheduler_service.store.connection import Store, Writer

LOG = logging.getLogger(__name__)
J = TypeVar('J', bound=Job)
_IDLE_S = 1.0
_AWAY_S = 0.5
# How many batches at most are decided on one view of the hosts.
_ALONG = 4


class Scheduler:
    """Everything the faces of the service call.

    Each verb returns a future at once. Answers are those of
    :mod:`scheduler_service.model.reply`; errors those of
    :mod:`scheduler_service.errors`.
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
        self._options = options
        self._inbox = RequestQueue(options.request_queue_size)
        self._keeper = SnapshotCache(store, options.snapshot_max_age)
        self._recorder = DecisionRecorder(store, options.decisions_kept)
        self._hosts = HostScheduler(
            self._keeper,
            hosts,
            self._recorder,
            rng,
            options.claim_retries,
            self.health,
        )
        self._zones = ZoneScheduler(
            self._keeper, pools, self._recorder, rng, self.health
        )
        self.reporter = HostStateWriter(
            store,
            HostStateWriterOptions(
                options.service_down_time, options.claim_timeout
            ),
            self.health,
        )
        self.quarantine = Quarantine(
            store, options.max_deliveries, self.health
        )
        self._thread = threading.Thread(
            target=self._run, name='engine', daemon=True
        )
        self._stopping = threading.Event()
        self._batches = self._jobs = 0

    def extend(
        self, extenders: Sequence[Extender], options: ExtenderOptions
    ) -> None:
        """Give extenders a say, before the start.

        :raises ConfigurationError: their TLS material does not load
        """
        self._hosts.extending = ExtenderDispatcher(
            extenders,
            self._hosts.pipeline,
            options,
            self.health,
            lambda job: self._inbox.put_back([job]),
            self._hosts.refuse,
        )

    def start(self) -> bool:
        """Load the snapshot, waiting for the database, and start deciding.

        :return: false where the wait was given up, and nothing started
        """
        while not self._stopping.is_set():
            try:
                self._keeper.load()
            except errors.StoreUnavailable as error:
                self.health.database_failed(error, _AWAY_S)
                self._stopping.wait(_AWAY_S)
            else:
                self.health.database_answered(len(self._inbox))
                self._recorder.start()
                self.reporter.start()
                self._thread.start()
                return True
        return False

    def stop(self, timeout: float = 30.0) -> bool:
        """Take nothing more, finish what was taken; whether all was done."""
        self._inbox.close()
        deadline = time.monotonic() + timeout
        self.give_up()
        if self._thread.is_alive():
            self._thread.join(timeout)
        done = not self._thread.is_alive()
        self.reporter.stop(max(1.0, deadline - time.monotonic()))
        self._hosts.close()
        self._recorder.stop(max(1.0, deadline - time.monotonic()))
        if done:
            self._keeper.drop()
        return done

    def give_up(self) -> None:
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
        """Choose hosts for the instances of a request, and claim them.

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
        self._inbox.put_all(jobs)
        return batch.whole

    def explain(
        self,
        request: Request,
        host: str | None = None,
        deadline: float | None = None,
    ) -> Future[Any]:
        """Say what would happen, and what each filter makes of the hosts.

        :raises ServiceBusy: too many requests wait
        """
        job = ExplainJob(request=request, host=host, deadline=deadline)
        return self._put(job)

    def release(
        self, instances: Sequence[str], deadline: float | None = None
    ) -> Future[Any]:
        """Give back claims; the future holds those that held something.

        :raises ServiceBusy: too many requests wait
        """
        return self._claims(
            lambda writer: lifecycle.release(writer, instances), deadline
        )

    def confirm(
        self, instances: Sequence[str], deadline: float | None = None
    ) -> Future[Any]:
        """Confirm claims; the future holds those that were not before.

        :raises ServiceBusy: too many requests wait
        """

        def work(writer: Writer) -> list[str]:
            where = lifecycle.promised(writer.conn, instances)
            return lifecycle.confirm(writer, where)

        return self._claims(work, deadline)

    def drop_moves(
        self, instances: Sequence[str], deadline: float | None = None
    ) -> Future[Any]:
        """Give back what instances hold where they do not move after all.

        :raises ServiceBusy: too many requests wait
        """
        return self._claims(
            lambda writer: lifecycle.drop_moves(writer, instances), deadline
        )

    def _claims(
        self, work: Callable[[Writer], Any], deadline: float | None
    ) -> Future[Any]:
        return self._put(ClaimsJob(work=work, deadline=deadline))

    def status(self) -> dict[str, Any]:
        """Return how the engine is, as plain values."""
        snapshot = self._keeper.snapshot
        age = time.monotonic() - self._keeper.refreshed_at
        up = int(snapshot.hosts.number('up').sum()) if snapshot else 0
        return {
            'hosts': len(snapshot.hosts) if snapshot else 0,
            'hosts_up': up,
            'pools': len(snapshot.pools) if snapshot else 0,
            'revision': snapshot.revision if snapshot else 0,
            'snapshot_age': round(age, 3) if snapshot else None,
            'waiting': len(self._inbox),
            'database': 'up' if self.health.database_reachable else 'away',
            'batches': self._batches,
            'requests': self._jobs,
            'degraded': self.health.degraded,
            # The name before the rename, kept for one release.
            'suffering': self.health.degraded,
            'counters': self.health.counters(),
        }

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot; its use moves on under the reader."""
        return self._keeper.snapshot

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
        """Write down the decisions that wait."""
        self._recorder.flush()

    def _put(self, job: Job) -> Future[Any]:
        assert isinstance(job.future, Future)
        self._inbox.put(job)
        return job.future

    def _run(self) -> None:
        while True:
            jobs = self._inbox.take(self._options.batch_size, _IDLE_S)
            if not jobs and self._inbox.closed and not self._asking:
                return
            try:
                self.health.check_queue(
                    len(self._inbox), self._options.request_queue_size
                )
                self._work(jobs)
                self.health.database_answered(len(jobs) + len(self._inbox))
            except errors.StoreUnavailable as error:
                self.health.database_failed(error, _AWAY_S)
                self._put_back(jobs)
                if self._stopping.wait(_AWAY_S):
                    return
            except Exception as fault:
                self._failed(jobs, fault)

    def _failed(self, jobs: list[Job], fault: Exception) -> None:
        """Decide a batch that nobody expected to fail one by one."""
        LOG.error('A batch of %d requests failed', len(jobs), exc_info=fault)
        # Whatever was under way for it is read anew.
        self._keeper.drop()
        if len(jobs) == 1:
            jobs[0].fail(errors.as_scheduler_error(fault))
            return
        left = [job for job in jobs if not job.future.done()]
        for job in left:
            job.alone = True
        self._inbox.put_back(left)

    def _more(self, jobs: list[Job]) -> list[HostJob]:
        """Take plain requests along that wait first in line, into *jobs*."""
        size = self._options.batch_size
        came = self._inbox.take_plain(min(_ALONG * size - len(jobs), size))
        jobs += came
        self._jobs += len(came)
        return self._in_time(came)

    @property
    def _asking(self) -> bool:
        """Whether extenders are being asked about requests."""
        return bool(
            self._hosts.extending and self._hosts.extending.has_pending
        )

    def _in_time(self, jobs: list[J]) -> list[J]:
        """Return the jobs whose answer somebody still waits for."""
        kept = []
        for job in jobs:
            if job.late():
                self.health.count('requests_expired')
                job.fail(errors.TooLate())
            else:
                kept.append(job)
        return kept

    def _work(self, batch: list[Job]) -> None:
        """Decide a batch, kind by kind; a job without an answer raises.

        :param batch: gets those that came meanwhile and were decided too
        """
        jobs = self._in_time(batch)
        if not jobs:
            self._keeper.current()
            return
        start = time.monotonic()
        self._batches += 1
        self._jobs += len(jobs)
        self.health.size('batch', len(jobs))
        self.health.time('wait', start - jobs[0].since)
        for job in jobs:
            if isinstance(job, ClaimsJob):
                self._change_claims(job)
        self._hosts.decide(
            [job for job in jobs if isinstance(job, HostJob)],
            lambda: self._more(batch),
        )
        self._zones.decide([job for job in jobs if isinstance(job, ZoneJob)])
        for job in jobs:
            if isinstance(job, ExplainJob):
                self._hosts.explain(job)
        self.health.check_batch(time.monotonic() - start)

    def _change_claims(self, job: ClaimsJob) -> None:
        if job.future.done():
            return
        with self._keeper.writer() as conn:
            changed = self._store.write(job.work, conn)
        self._keeper.refresh()
        job.answer(changed)

    def _put_back(self, jobs: list[Job]) -> None:
        """Keep jobs without an answer while somebody still waits for it."""
        for job in jobs:
            if job.late():
                job.fail(errors.StoreUnavailable())
        self._inbox.put_back([job for job in jobs if not job.future.done()])


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
