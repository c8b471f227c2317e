"""Claims what was selected for jobs: SELECTED -> CLAIMED, batch by batch.

A long batch goes in portions: while the database claims one portion, the
next is selected, on the same overlay. Jobs that arrive meanwhile join it. A
job that lost its claim is QUEUED again. It belongs to the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from scheduler_service import errors, time_slice
from scheduler_service.columns import Overlay
from scheduler_service.engine.finishing import Finisher
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.ports import (
    Claimer,
    ClaimLost,
    HostSource,
    PendingClaims,
)
from scheduler_service.engine.selecting import Selector

# Long enough that a claim costs little each, short enough that the database
# has something to do while the next portion is selected.
_PORTION = 32
NextJobs = Callable[[], Sequence[HostJob]]


class _Portion(NamedTuple):
    """Jobs that are claimed together.

    :ivar pending: None where none of them needs a claim
    :ivar sent_at: monotonic time at which the claim was sent
    """

    jobs: list[HostJob]
    pending: PendingClaims | None
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
        source: HostSource,
        selector: Selector,
        claimer: Claimer,
        finisher: Finisher,
        health: Health,
        next_jobs: NextJobs,
    ) -> None:
        self._source = source
        self._selector = selector
        self._claimer = claimer
        self._finisher = finisher
        self._health = health
        self._next_jobs = next_jobs
        self._overlay = Overlay(source.current().hosts)
        # When what the first jobs are judged by was known to be current.
        self._current_at = source.current_at
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
                    # Another claim changed these hosts.
                    self._select_again(portion)
                    continue
                selected = self._select(portion)
                batch = self._claimer.prepare(selected)
                before, under_way = under_way, None
                if before is not None and not self._is_claimed(before):
                    self._select_again(selected)
                    continue
                pending, sent_at = None, time.monotonic()
                if batch is not None:
                    count = sum(job.claim for job in selected)
                    pending = self._claimer.send(batch, count)
                under_way = _Portion(selected, pending, sent_at)
                if before is not None:
                    self._finish(before)
        except BaseException:
            # The claim is already sent, so reply even if a later portion
            # failed.
            if under_way is not None and self._is_claimed(under_way):
                self._finish(under_way)
            raise
        if under_way is not None and self._is_claimed(under_way):
            self._finish(under_way)

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

    def _select_again(self, jobs: Sequence[HostJob]) -> None:
        for job in jobs:
            job.begin_anew()
        self._again += jobs

    def _select(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Select for jobs in turn; return those with something selected."""
        start = time.perf_counter()
        selected: list[HostJob] = []
        for job in jobs:
            if selected and self._is_over():
                self.unfinished.append(job)
                continue
            self._select_one(job)
            if job.state is State.SELECTED:
                selected.append(job)
            elif job.state is State.CLAIMED:
                self._finisher.advance([job])
        self._health.time('choose', time.perf_counter() - start)
        return selected

    def _is_over(self) -> bool:
        """Whether others than the first caller have their turn."""
        return self._turn is not None and self._turn.over()

    def _select_one(self, job: HostJob) -> None:
        """Select for a job, or refuse it, or have it go on later.

        :raises StoreUnavailable: the job has no result yet
        """
        try:
            self._selector.select(self._overlay, job)
        except errors.StoreUnavailable:
            # The fault is not the request's: it waits for the database.
            raise
        except errors.NoValidHost as error:
            table = self._overlay.table
            if self._selector.forget_candidates(job):
                self.unfinished.append(job)
            elif not self._selector.ask_extenders_again(job, table):
                self._refused.append((job, errors.without_traceback(error)))
        except errors.SchedulerError as error:
            self._finisher.refuse(job, error)
        except time_slice.TimeSliceOver:
            self.unfinished.append(job)

    def _is_claimed(self, portion: _Portion) -> bool:
        """Wait for a portion's claim; return whether it was made.

        If not, its jobs are claimed one by one.
        """
        if portion.pending is None:
            return True
        try:
            portion.pending.wait()
        except ClaimLost:
            self.lost = True
            self._overlay.forget()
            self._claim_each(portion.jobs)
            return False
        return True

    def _finish(self, portion: _Portion) -> None:
        """Have claimed jobs go on, and let the snapshot keep their claims."""
        jobs, pending, sent_at = portion
        if pending is not None:
            _trace_claim(jobs, sent_at)
        # Before the snapshot is brought up to date: replies travel meanwhile.
        self._advance(jobs)
        if pending is None:
            return
        if any(job.move for job in jobs):
            # The overlay shows an instance that moves in one place only.
            self._overlay.forget()
            self._source.refresh()
            return
        self._claimed = True
        self._overlay.commit(sum(_instances(job) for job in jobs if job.claim))
        self._source.advance(pending, sent_at)

    def _advance(self, jobs: Sequence[HostJob]) -> None:
        """Have jobs go on that are claimed, or need no claim."""
        for job in jobs:
            job.state = State.CLAIMED if job.claim else State.BOUND
        self._finisher.advance(jobs)

    def _claim_each(self, jobs: Sequence[HostJob]) -> None:
        """Claim job by job what could not be claimed together."""
        several = sum(job.claim for job in jobs) > 1
        for job in jobs:
            if not job.claim or (several and self._claim_alone(job)):
                self._advance([job])
                continue
            self._finisher.count_lost_claim(job)
            if not job.done():
                self._again.append(job)
        if several:
            self._source.refresh()

    def _claim_alone(self, job: HostJob) -> bool:
        batch = self._claimer.prepare([job])
        assert batch is not None
        try:
            self._claimer.send(batch, 1).wait()
        except ClaimLost:
            return False
        return True

    def _settle_refusals(self) -> None:
        """Refuse jobs, or schedule them again where a host may fit by now.

        A refusal holds where nothing that was assumed before it came to
        nothing, and the snapshot was current after the job came. Where it was
        not, jobs that can be claimed for do not wait until it is.
        """
        current_at = max(self._current_at, self._source.current_at)
        doubtful = []
        for job, error in self._refused:
            if not self.lost and job.queued_at <= current_at:
                self._finisher.refuse(job, error)
            else:
                doubtful.append((job, error))
        if not doubtful:
            return
        jobs = [job for job, _ in doubtful]
        if self._claimed and not self.lost:
            self.unfinished += jobs
        elif self.lost or self._source.changed_by_others():
            self._again += jobs
        else:
            for job, error in doubtful:
                self._finisher.refuse(job, error)


def _trace_claim(jobs: Sequence[HostJob], sent_at: float) -> None:
    """Add a claim that was made for some jobs together to their traces."""
    for job in jobs:
        trace = job.message.trace
        if trace is not None:
            trace.stage(
                'claim',
                sent_at,
                time.monotonic(),
                requests=len(jobs),
                instances=_instances(job),
            )


def _instances(job: HostJob) -> int:
    """Return for how many instances hosts were selected."""
    return 0 if job.selection is None else len(job.selection.assignments)
