"""The engine's thread: takes batches of jobs and decides them.

It alone uses the snapshot, the pipelines and their connections.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from scheduler_service import errors
from scheduler_service.engine.batch import in_time, schedule, undecided
from scheduler_service.engine.cycle import HostCycle
from scheduler_service.engine.jobs import (
    Change,
    ClaimsJob,
    ExplainJob,
    HostJob,
    Job,
    ZoneJob,
)
from scheduler_service.engine.journal import Changed
from scheduler_service.engine.messages import (
    DeliveredMessage,
    ReplyFuture,
    RequestReturned,
    is_late,
)
from scheduler_service.engine.ports import Parts, StoreMonitor
from scheduler_service.engine.zones import ZoneStages
from scheduler_service.settings import EngineOptions
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
J = TypeVar('J', bound=Job)
_IDLE_S = 1.0
# The pause of a stopping engine whose last jobs are with other threads, in
# seconds.
_CLOSING_PAUSE_S = 0.005
# The pause after a lock or a statement took too long, in seconds.
_PAUSE_S = 0.05
# After how many seconds an unreachable database is asked again.
RETRY_S = 0.5
# The factor by which jobs that arrive meanwhile may enlarge a batch.
_GROWTH = 4


class EngineLoop(Worker):
    """Takes batches from the queue until it is closed and empty.

    :ivar batches: how many were taken
    :ivar requests: how many jobs were in them
    :ivar turns: how often the loop turned
    :ivar turned_at: monotonic time of its last turn
    """

    def __init__(
        self,
        parts: Parts,
        hosts: HostCycle,
        zones: ZoneStages,
        options: EngineOptions,
        monitor: StoreMonitor,
    ) -> None:
        super().__init__('engine', parts.health.vital_thread_ended)
        self._parts, self._journal = parts, parts.journal
        self._source, self._claimer = parts.source, parts.claimer
        self._health, self._queue = parts.health, parts.queue
        self._hosts, self._zones = hosts, zones
        self._monitor = monitor
        self._options = options
        self.batches = self.requests = self.turns = 0
        self.turned_at = time.monotonic()
        # Work that waits for the moment between two batches.
        self._changes: collections.deque[
            tuple[Callable[[], None], Future[None]]
        ] = collections.deque()

    def between_batches(self, work: Callable[[], None]) -> Future[None]:
        """Have work done by the thread while no job is being decided.

        :return: the future of its end
        """
        done: Future[None] = Future()
        self._changes.append((work, done))
        self._queue.interrupt()
        return done

    def _change(self) -> None:
        while self._changes:
            work, done = self._changes.popleft()
            try:
                work()
            except BaseException as fault:
                done.set_exception(fault)
            else:
                done.set_result(None)

    def _run(self) -> None:
        while True:
            self.turns += 1
            self.turned_at = time.monotonic()
            jobs = self._queue.take(self._options.batch_size, _IDLE_S)
            self._change()
            if not jobs and self._queue.closed and not len(self._queue):
                if self._queue.is_drained():
                    return
                # A closed queue does not wait for jobs any more.
                time.sleep(_CLOSING_PAUSE_S)
            try:
                self._health.check_queue(len(self._queue), self._queue.size)
                self._decide(jobs)
                self._monitor.answered(len(jobs) + len(self._queue))
            except errors.StoreTimeout as error:
                self._health.database_timed_out(error)
                self._requeue(jobs)
                self._stopping.wait(_PAUSE_S)
            except errors.StoreUnavailable as error:
                if self._monitor.only_session_lost(error):
                    self._source.drop()
                    self._requeue(jobs)
                    continue
                self._monitor.lost(error)
                self._give_back(jobs)
                if self._stopping.wait(RETRY_S):
                    return
            except BaseException as fault:
                self._isolate(jobs, fault)

    def _decide(self, batch: list[Job]) -> None:
        """Give every job of a batch its result: changes, and requests.

        The order does not matter: the queue gives out one at a time of those
        that name the same instance. So releases travel while hosts are
        selected and claimed.
        """
        jobs = in_time(batch, self._health)
        if not jobs:
            self._source.current()
            return
        start = time.monotonic()
        self._count_batch(jobs, start)
        by_kind: dict[type[Job], list[Any]] = {}
        for job in jobs:
            kind = HostJob if isinstance(job, HostJob) else type(job)
            by_kind.setdefault(kind, []).append(job)
        unfinished: list[HostJob] = []
        changes = by_kind.get(ClaimsJob)
        if changes:
            if HostJob in by_kind:
                # Reading would wait for them.
                self._source.current()
            self._claimer.send_changes(changes)
        try:
            if HostJob in by_kind:
                unfinished = schedule(
                    by_kind[HostJob],
                    self._parts,
                    self._hosts,
                    lambda: self._next_jobs(batch),
                )
        finally:
            if changes:
                self._claimer.make_changes(changes)
                self._note(changes)
        if ZoneJob in by_kind:
            self._zones.decide(by_kind[ZoneJob])
        for job in by_kind.get(ExplainJob, ()):
            self._hosts.explain(job)
        # Last, since all without a result are put back where this fails.
        if unfinished:
            self._queue.requeue(unfinished)
        self._health.check_batch(time.monotonic() - start)

    def _note(self, changes: Sequence[ClaimsJob]) -> None:
        """Record changes of claims that were made."""
        for job in changes:
            if job.future.done() and job.future.exception() is None:
                name, sent_id = job.change.name.lower(), job.message.sent_id()
                self._journal.put(Changed(name, job.instances, sent_id))

    def _count_batch(self, jobs: Sequence[Job], start: float) -> None:
        self.batches += 1
        self.requests += len(jobs)
        self._health.observe('batch_size', len(jobs))
        # All others have waited for a stage since they were decided.
        for job in jobs:
            if job.waits:
                self._health.time('wait', start - job.queued_at)
                break

    def _next_jobs(self, batch: list[Job]) -> list[HostJob]:
        """Take batchable jobs that are first in line, into *batch*."""
        size = self._options.batch_size
        room = _GROWTH * size - len(batch)
        taken = self._queue.take_batchable(min(room, size))
        batch += taken
        self.requests += len(taken)
        return in_time(taken, self._health)

    def _give_back(self, jobs: list[Job]) -> None:
        """Return jobs, and all that wait, to the message bus.

        Those that cannot be returned are kept until their deadline.
        """
        held = [*undecided(jobs), *self._queue.take_all()]
        for job in held:
            if job.future.returnable:
                job.fail(RequestReturned())
        self._requeue(held)

    def _requeue(self, jobs: list[Job]) -> None:
        """Keep jobs without a result until their deadline."""
        left = undecided(jobs)
        for job in left:
            if is_late(job.deadline):
                job.fail(errors.StoreUnavailable())
        self._queue.requeue([job for job in left if not job.done()])

    def _isolate(self, jobs: list[Job], fault: BaseException) -> None:
        """Have each job of a batch that failed decided alone, once more.

        It is not known what was claimed for them, which is found then.
        """
        LOG.error('A batch of %d requests failed', len(jobs), exc_info=fault)
        # A claim may be under way for them: read everything again.
        self._source.drop()
        left = undecided(jobs)
        if len(jobs) == 1 and all(job.isolated for job in left):
            for job in left:
                self._refuse(job, errors.as_scheduler_error(fault))
            return
        for job in left:
            job.isolated = True
        self._queue.requeue(left)

    def _refuse(self, job: Job, error: errors.SchedulerError) -> None:
        """Refuse a job that failed alone, once what it claimed is undone."""
        message = job.message
        if (
            not (isinstance(job, HostJob) and job.claim and job.key)
            # Another daemon may have answered with its claims.
            or message.redelivered
            or message.is_lost()
        ):
            job.fail(error)
            return

        def refuse(undone: Future[Any]) -> None:
            stay = undone.exception()
            if stay is not None:
                LOG.warning('Claims of a refused request stay: %s', stay)
            job.fail(error)

        # Not behind the job, which it would wait for.
        undo = ClaimsJob(
            change=Change.UNDO,
            instances=job.names,
            claimed_by=job.key,
            message=DeliveredMessage(lane=message.lane),
            future=(undone := ReplyFuture()),
        )
        undone.add_done_callback(refuse)
        self._queue.requeue([undo])
