"""Schedules host jobs: batch after batch, until none can go on here.

:class:`SchedulingBatch` has hosts selected and claims them, SELECTED ->
CLAIMED. A long batch goes in portions: while the database claims one portion,
the next is selected, on the same overlay. Jobs that arrive meanwhile join it.
A job that lost its claim is QUEUED again. All of it belongs to the engine's
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence

from scheduler_service import errors, time_slice, tracing
from scheduler_service.columns import Overlay
from scheduler_service.engine.explanations import Explainer
from scheduler_service.engine.finishing import Finisher
from scheduler_service.engine.jobs import ExplainJob, HostJob, State
from scheduler_service.engine.ports import (
    ClaimLost,
    Completer,
    Extenders,
    Parts,
    PendingClaims,
)
from scheduler_service.engine.selecting import Selector
from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.pipeline import HostPipeline

# Long enough that a claim costs little each, short enough that the database
# has something to do while the next portion is selected.
_PORTION = 32
# How long hosts are selected for one batch while others wait, in seconds.
_BATCH_TURN_S = 0.1
NextJobs = Callable[[], Sequence[HostJob]]
# Jobs that are claimed together; None: none of them needs a claim.
Portion = tuple[list[HostJob], PendingClaims | None]


class HostStages:
    """Schedules batches of host jobs.

    :param retries: how often a job that lost its claim is scheduled again
    """

    def __init__(
        self, parts: Parts, pipeline: HostPipeline, retries: int
    ) -> None:
        self._parts = parts
        self._finisher = Finisher(
            parts, retries, pipeline.settings.max_attempts
        )
        self._explainer = Explainer(pipeline, parts.rng, parts.queue)
        self._selector = Selector(parts, pipeline)
        self._use(pipeline)
        # Extenders of configurations before, until their last job is back.
        self._retired: list[Extenders] = []

    def use(
        self,
        pipeline: HostPipeline,
        retries: int,
        extenders: Extenders | None,
    ) -> None:
        """Schedule by another configuration, from the next batch on.

        Jobs that extenders are being asked about begin anew.
        """
        self._use(pipeline)
        self._explainer.use(pipeline)
        self._finisher.retries = retries
        self._finisher.max_binds = pipeline.settings.max_attempts
        before = self.extenders
        self.extend(extenders)
        self._retired = [retired for retired in self._retired
                         if retired.pending]  # fmt: skip
        if before is not None:
            before.retire()
            self._retired.append(before)

    def _use(self, pipeline: HostPipeline) -> None:
        self.pipeline = self._selector.pipeline = pipeline
        self._parts.claimer.use(
            {
                name: pipeline.settings.default_ratio(name)
                for name in STANDARD_CLASSES
            },
            pipeline.group_policies.strict,
        )

    def extend(self, extenders: Extenders | None) -> None:
        """Have extenders asked, and bind what is claimed."""
        self._selector.extenders = self._finisher.extenders = extenders

    def complete_with(self, completer: Completer) -> None:
        """Have what is claimed in the store completed."""
        self._selector.completer = self._finisher.completer = completer

    @property
    def extenders(self) -> Extenders | None:
        """What asks extenders; None: there are none."""
        return self._finisher.extenders

    @property
    def selections(self) -> int:
        """How often hosts were selected for a job."""
        return self._selector.selections

    def close(self) -> None:
        """Schedule nothing more."""
        self._explainer.stop()
        if self._finisher.completer is not None:
            self._finisher.completer.stop()
        for extenders in (self.extenders, *self._retired):
            if extenders is not None:
                extenders.stop()

    def schedule(
        self, jobs: Sequence[HostJob], next_jobs: NextJobs = tuple
    ) -> list[HostJob]:
        """Bring every job as far as it goes, but for those whose turn is over.

        :param jobs: new ones, and those that a stage gave back
        :param next_jobs: gives batchable jobs that arrived meanwhile
        :return: jobs to go on with when others had their turn
        :raises StoreUnavailable: some have none yet, and may be scheduled
            again: what was claimed for them is found then
        """
        self._finisher.advance(jobs)
        waiting = [
            job
            for job in jobs
            if job.state is State.QUEUED and not (job.away or job.done())
        ]
        unfinished: list[HostJob] = []
        while waiting:
            batch = SchedulingBatch(
                self._parts, self._selector, self._finisher, next_jobs
            )
            waiting = batch.run(waiting)
            unfinished += batch.unfinished
            next_jobs = tuple
            if batch.outdated:
                self._parts.source.refresh()
        return unfinished

    def explain(self, job: ExplainJob) -> None:
        """Explain a request: the result of every filter on the hosts.

        :raises StoreUnavailable: the job has no result yet
        """
        if not job.done():
            table = self._parts.source.current().hosts
            self._explainer.explain(job, table)


class SchedulingBatch:
    """Selects and claims once for some jobs, on one snapshot.

    Of two jobs that name the same instance the queue hands out the second
    one once the first has its result, and the snapshot its claim.

    :param next_jobs: gives batchable jobs that arrived meanwhile, if any
    :ivar outdated: whether the hosts have to be read again: a claim was lost,
        or an instance moves
    :ivar unfinished: jobs whose turn was over; nothing is assumed for them
    """

    def __init__(
        self,
        parts: Parts,
        selector: Selector,
        finisher: Finisher,
        next_jobs: NextJobs,
    ) -> None:
        self._source, self._claimer = parts.source, parts.claimer
        self._health, self._queue = parts.health, parts.queue
        self._selector, self._finisher = selector, finisher
        self._next_jobs = next_jobs
        self._overlay = Overlay(self._source.current().hosts)
        # When what the first jobs are judged by was known to be current.
        self._current_at = self._source.current_at
        self._claimed = False
        self._again: list[HostJob] = []
        self.unfinished: list[HostJob] = []
        self._lane: Hashable = None
        self._turn_ends_at = time.monotonic() + _BATCH_TURN_S
        self._refused: list[tuple[HostJob, errors.SchedulerError]] = []
        self.outdated = False

    def run(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Decide what can be decided; return the jobs to schedule again.

        Each portion is selected while the one before it is claimed.

        :raises StoreUnavailable: some jobs have no result yet
        """
        self._lane = jobs[0].message.lane
        under_way: Portion | None = None
        try:
            for portion in self._portions(jobs):
                if self.outdated:
                    # Another claim changed these hosts.
                    self._select_again(portion)
                    continue
                selected = self._select(portion)
                pending = self._claimer.prepare(selected)
                before, under_way = under_way, None
                why = self._why_lost(*before) if before else None
                if before and why is not None:
                    self._claim_each(before[0], why)
                    self._select_again(selected)
                    continue
                if pending is not None:
                    self._claimer.send(pending)
                under_way = selected, pending
                if before is not None:
                    self._finish(*before)
        finally:
            try:
                # The claim is already sent, so reply even if a later portion
                # failed.
                if under_way is not None:
                    why = self._why_lost(*under_way)
                    if why is None:
                        self._finish(*under_way)
                    else:
                        self._claim_each(under_way[0], why)
            finally:
                # What was selected and not claimed.
                self._overlay.forget()
        if self._refused:
            self._settle_refusals()
        return self._again

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
        while not self.outdated and not self._is_over():
            more = self._next_jobs()
            if not more:
                break
            yield more

    def _select_again(self, jobs: Sequence[HostJob]) -> None:
        for job in jobs:
            job.begin_anew()
        self._again += jobs

    def _select(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Select for jobs in turn; return those with something selected.

        Others are refused, or go on later.
        """
        start = time.perf_counter()
        selected: list[HostJob] = []
        for job in jobs:
            if selected and self._is_over():
                self.unfinished.append(job)
                continue
            try:
                self._selector.select(self._overlay, job)
            except errors.StoreUnavailable:
                # The fault is not the request's: it waits for the database.
                raise
            except errors.NoValidHost as error:
                self._ask_again(job, error)
            except errors.SchedulerError as error:
                self._finisher.refuse(job, error)
            except time_slice.TimeSliceOver:
                self.unfinished.append(job)
            if job.state is State.SELECTED:
                selected.append(job)
            elif job.state is State.CLAIMED:
                self._finisher.advance([job])
        self._health.time('choose', time.perf_counter() - start)
        return selected

    def _ask_again(self, job: HostJob, error: errors.NoValidHost) -> None:
        if self._selector.forget_candidates(job, self._overlay.table):
            self.unfinished.append(job)
        elif not self._selector.ask_extenders_again(job, self._overlay.table):
            self._refused.append((job, errors.without_traceback(error)))

    def _is_over(self) -> bool:
        """Whether others than the first caller have their turn."""
        return (
            time.monotonic() >= self._turn_ends_at
            and self._queue.others_wait(self._lane)
        )

    def _why_lost(
        self, jobs: Sequence[HostJob], pending: PendingClaims | None
    ) -> str | None:
        """Wait for the claim of jobs; return why it is lost; None: made."""
        if pending is None:
            return None
        try:
            pending.wait()
        except ClaimLost as fault:
            lost = sum(job.claim for job in jobs)
            self._health.count('claims_lost', by=lost)
            return str(fault)
        finally:
            took = time.monotonic() - pending.sent_at
            self._health.time('claim', took)
        return None

    def _finish(
        self, jobs: Sequence[HostJob], pending: PendingClaims | None
    ) -> None:
        """Have jobs go on that are claimed, or need no claim.

        The snapshot keeps their claims.
        """
        move = False
        for job in jobs:
            job.state = State.CLAIMED if job.claim else State.BOUND
            move = move or job.move
            if job.message.trace is not None and pending is not None:
                _trace_claim(job, job.message.trace, pending, len(jobs))
        # Before the snapshot is brought up to date: replies travel meanwhile.
        self._finisher.advance(jobs)
        if pending is None:
            return
        if move:
            # The overlay shows an instance that moves in one place only.
            self._overlay.forget()
            self.outdated = True
            return
        self._claimed = True
        self._overlay.commit(pending.instances)
        self._source.advance(pending)

    def _claim_each(self, jobs: Sequence[HostJob], together: str) -> None:
        """Claim job by job what could not be claimed together.

        The claims travel together. The snapshot lacks what they take.

        :param together: why the claim of all is lost
        """
        self.outdated = True
        self._overlay.forget()
        alone = [self._claimer.prepare([job]) for job in jobs]
        several = sum(pending is not None for pending in alone) > 1
        if several:
            self._claimer.send(*filter(None, alone))
        for job, pending in zip(jobs, alone, strict=True):
            alone_too = several or pending is None
            why = self._why_lost([job], pending) if alone_too else together
            if why is None:
                self._finish([job], None)
                continue
            self._finisher.count_lost_claim(job, why)
            if not job.done():
                self._again.append(job)

    def _settle_refusals(self) -> None:
        """Refuse jobs, or schedule them again where a host may fit by now.

        A refusal holds where nothing that was assumed before it came to
        nothing, and the snapshot was current after the job came. Where it was
        not, jobs that can be claimed for do not wait until it is.
        """
        current_at = max(self._current_at, self._source.current_at)
        doubtful = []
        for job, error in self._refused:
            came_at = max(job.queued_at, job.attempt.checked_at)
            if not self.outdated and came_at <= current_at:
                self._refuse(job, error)
            else:
                doubtful.append((job, error))
        if not doubtful:
            return
        later = self._claimed and not self.outdated
        if not (later or self.outdated or self._source.changed_by_others()):
            for job, error in doubtful:
                self._refuse(job, error)
            return
        for job, _ in doubtful:
            self._selector.forget_answers(job)
            (self.unfinished if later else self._again).append(job)

    def _refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Refuse a job, or schedule it again with VCPU for PCPU."""
        if self._selector.check_refusal(job, error, self._overlay.table):
            return
        self._finisher.refuse(job, error)
        if not job.done():
            self._again.append(job)


def _trace_claim(
    job: HostJob, trace: tracing.Trace, pending: PendingClaims, jobs: int
) -> None:
    """Add a claim that was made for some jobs together to a job's trace."""
    selection = job.attempt.selection
    made = 0 if selection is None else len(selection.assignments)
    trace.stage(
        'claim',
        pending.sent_at,
        time.monotonic(),
        requests=jobs,
        instances=made,
    )
