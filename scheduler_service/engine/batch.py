"""One batch: select, claim, reply; jobs that lost a claim come back.

A long batch goes in portions: while the database claims one portion, the
next is selected, on the same overlay. Jobs that arrive meanwhile join it.
A batch belongs to the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from scheduler_service import errors, time_slice
from scheduler_service.columns import Overlay
from scheduler_service.engine.claiming import ClaimSender, ScheduledJob
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.outcomes import Recalled
from scheduler_service.engine.replies import HostReplies
from scheduler_service.engine.selection import Repeated, Selector
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.store import claims

# Long enough that a claim costs little each, short enough that the database
# has something to do while the next portion is selected.
_PORTION = 32
NextJobs = Callable[[], Sequence[HostJob]]


class _Portion(NamedTuple):
    """Jobs that are claimed together.

    :ivar pending: None where none of them wants a claim
    :ivar sent_at: monotonic time at which the claim was sent
    """

    scheduled: list[ScheduledJob]
    pending: claims.PendingClaim | None
    sent_at: float


class SchedulingBatch:
    """Selects and claims once for some jobs, on one snapshot.

    Of two jobs that name the same instance the queue hands out the second
    one once the first has its result, and the snapshot its claim.

    :param next_jobs: gives batchable jobs that arrived meanwhile, if any
    :ivar lost: whether a claim was lost, so that others changed the hosts
    :ivar unfinished: jobs whose turn was over; nothing is assumed for them
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        selector: Selector,
        sender: ClaimSender,
        replies: HostReplies,
        health: Health,
        next_jobs: NextJobs,
    ) -> None:
        self._snapshots = snapshots
        self._selector = selector
        self._sender = sender
        self._replies = replies
        self._health = health
        self._next_jobs = next_jobs
        self._overlay = Overlay(snapshots.current().hosts)
        # When what the first jobs are judged by was known to be current.
        self._current_at = snapshots.current_at
        self._claimed = False
        self._again: list[HostJob] = []
        self.unfinished: list[HostJob] = []
        self._turn: time_slice.TimeSlice | None = None
        self._refused: list[tuple[HostJob, errors.SchedulerError]] = []
        self.lost = False

    def run(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Decide what can be decided; return the jobs to schedule again.

        :raises StoreUnavailable: some jobs have no result yet
        """
        self._turn = self._selector.batch_turn(jobs[0])
        try:
            self._run(jobs)
        finally:
            # What was selected and not claimed.
            self._overlay.forget()
        self._settle_refusals()
        return self._again

    def _run(self, jobs: Sequence[HostJob]) -> None:
        """Select each portion while the one before it is claimed."""
        under_way: _Portion | None = None
        try:
            for portion in self._portions(jobs):
                if self.lost:
                    # Another claim changed these hosts: schedule this
                    # portion again.
                    self._again += portion
                    continue
                scheduled = self._select(portion)
                batch = self._sender.prepare(scheduled)
                before, under_way = under_way, None
                if before is not None and not self._is_claimed(before):
                    self._again += [
                        scheduled_job.job for scheduled_job in scheduled
                    ]
                    continue
                pending, sent_at = None, time.monotonic()
                if batch is not None:
                    count = sum(
                        scheduled_job.job.claim for scheduled_job in scheduled
                    )
                    pending = self._sender.send(batch, count)
                under_way = _Portion(scheduled, pending, sent_at)
                if before is not None:
                    self._reply(before)
        except BaseException:
            # The claim is already sent, so reply even if a later portion
            # failed.
            if under_way is not None and self._is_claimed(under_way):
                self._reply(under_way)
            raise
        if under_way is not None and self._is_claimed(under_way):
            self._reply(under_way)

    def _portions(
        self, jobs: Sequence[HostJob]
    ) -> Iterator[Sequence[HostJob]]:
        """Yield jobs in portions, then those that arrived meanwhile.

        Moves change two hosts at once and stay in one portion.
        """
        if len(jobs) < 2 * _PORTION or not all(job.batchable for job in jobs):
            yield jobs
            return
        start = 0
        while len(jobs) - start >= 2 * _PORTION:
            yield jobs[start : start + _PORTION]
            start += _PORTION
        yield jobs[start:]
        while not self.lost and not self._is_over():
            more = self._next_jobs()
            if not more:
                break
            yield more

    def _select(self, jobs: Sequence[HostJob]) -> list[ScheduledJob]:
        """Select for jobs; refusals are kept for the end of the batch."""
        start = time.perf_counter()
        scheduled: list[ScheduledJob] = []
        for job in jobs:
            if scheduled and self._is_over():
                self.unfinished.append(job)
                continue
            selected = self._select_one(job)
            if isinstance(selected, ScheduledJob):
                scheduled.append(selected)
            elif isinstance(selected, Recalled):
                self._replies.recall(job, self._overlay.table, selected)
            elif selected is not None:
                self._replies.repeat(
                    job, self._overlay.table, selected.placements
                )
        self._health.time('choose', time.perf_counter() - start)
        return scheduled

    def _is_over(self) -> bool:
        """Whether others than the first caller have their turn."""
        return self._turn is not None and self._turn.over()

    def _select_one(
        self, job: HostJob
    ) -> ScheduledJob | Repeated | Recalled | None:
        """Select for a job; None where it is refused or goes on later.

        :raises StoreUnavailable: the job has no result yet
        """
        try:
            return self._selector.select(self._overlay, job)
        except errors.StoreUnavailable:
            # The fault is not the request's: it waits for the database.
            raise
        except errors.NoValidHost as error:
            table = self._overlay.table
            if not self._selector.requery_extenders(job, table):
                self._refused.append((job, errors.without_traceback(error)))
        except errors.SchedulerError as error:
            self._replies.refuse(job, error)
        except time_slice.TimeSliceOver:
            self.unfinished.append(job)
        return None

    def _is_claimed(self, portion: _Portion) -> bool:
        """Wait for a portion's claim; return whether it was made.

        If not, its jobs are claimed one by one.
        """
        if portion.pending is None:
            return True
        try:
            self._sender.wait(portion.pending)
        except claims.ClaimLost:
            self.lost = True
            self._overlay.forget()
            self._claim_each(portion.scheduled)
            return False
        return True

    def _reply(self, portion: _Portion) -> None:
        """Reply to jobs that are claimed, and let the snapshot keep them."""
        scheduled, pending, sent_at = portion
        if pending is not None:
            _trace_claim(scheduled, sent_at)
        # Replies first: the snapshot is brought up to date as they travel.
        with self._replies.claimer.hold():
            for scheduled_job in scheduled:
                self._replies.finish(scheduled_job)
        for scheduled_job in scheduled:
            self._replies.record(scheduled_job)
        if pending is None:
            return
        if any(scheduled_job.job.move for scheduled_job in scheduled):
            # The overlay shows an instance that moves in one place only.
            self._overlay.forget()
            self._snapshots.refresh()
            return
        self._claimed = True
        claimed = (
            scheduled_job.result
            for scheduled_job in scheduled
            if scheduled_job.job.claim
        )
        self._overlay.commit(
            sum(
                len(schedule_result.assignments) for schedule_result in claimed
            )
        )
        self._snapshots.advance(pending.wait(), pending.lineage, sent_at)

    def _claim_each(self, scheduled: Sequence[ScheduledJob]) -> None:
        """Claim job by job what could not be claimed together."""
        several = (
            sum(scheduled_job.job.claim for scheduled_job in scheduled) > 1
        )
        for scheduled_job in scheduled:
            if scheduled_job.job.claim and not (
                several and self._claim_alone(scheduled_job)
            ):
                self._replies.count_lost_claim(scheduled_job.job)
                if not scheduled_job.job.done():
                    self._again.append(scheduled_job.job)
                continue
            self._replies.finish(scheduled_job)
            self._replies.record(scheduled_job)
        if several:
            self._snapshots.refresh()

    def _claim_alone(self, scheduled: ScheduledJob) -> bool:
        batch = self._sender.prepare([scheduled])
        assert batch is not None
        try:
            self._sender.wait(self._sender.send(batch, 1))
        except claims.ClaimLost:
            return False
        return True

    def _settle_refusals(self) -> None:
        """Refuse jobs, or schedule them again where a host may fit by now.

        A refusal holds where nothing that was assumed before it came to
        nothing, and the snapshot was current after the job came. Where it was
        not, jobs that can be claimed for do not wait until it is.
        """
        current_at = max(self._current_at, self._snapshots.current_at)
        doubtful = []
        for job, error in self._refused:
            if not self.lost and job.queued_at <= current_at:
                self._replies.refuse(job, error)
            else:
                doubtful.append((job, error))
        if not doubtful:
            return
        jobs = [job for job, _ in doubtful]
        if self._claimed and not self.lost:
            self.unfinished += jobs
        elif self.lost or self._snapshots.changed_by_others():
            self._again += jobs
        else:
            for job, error in doubtful:
                self._replies.refuse(job, error)


def _trace_claim(scheduled: Sequence[ScheduledJob], sent_at: float) -> None:
    """Add a claim that was made for some jobs together to their traces."""
    for scheduled_job in scheduled:
        trace = scheduled_job.job.message.trace
        if trace is not None:
            trace.stage(
                'claim',
                sent_at,
                time.monotonic(),
                requests=len(scheduled),
                instances=len(scheduled_job.result.assignments),
            )
