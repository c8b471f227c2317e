"""Batches: host jobs that go through the stages of the cycle together.

Stages before the claim run for one job after the other, on an overlay: each
sees what was selected before it. A long batch is claimed in portions: while
the database claims one, the next is selected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from scheduler_service import errors, time_slice, tracing
from scheduler_service.columns import Overlay
from scheduler_service.engine.cycle import HostCycle
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, Job, State
from scheduler_service.engine.journal import Ended
from scheduler_service.engine.messages import is_late
from scheduler_service.engine.ports import ClaimLost, Parts, PendingClaims

J = TypeVar('J', bound=Job)
# Long enough that a claim costs little each, short enough that the database
# has something to do while the next portion is selected.
_PORTION = 32
# How long hosts are selected for one batch while others wait, in seconds.
_BATCH_TURN_S = 0.1
NextJobs = Callable[[], Sequence[HostJob]]
# Jobs that are claimed together; None: none of them needs a claim.
Portion = tuple[list[HostJob], PendingClaims | None]


def schedule(
    jobs: Sequence[HostJob],
    parts: Parts,
    cycle: HostCycle,
    next_jobs: NextJobs = tuple,
) -> list[HostJob]:
    """Bring every job as far as it goes, but for those whose turn is over.

    :param jobs: new ones, and those that a stage gave back
    :param cycle: whose stages run
    :param next_jobs: gives batchable jobs that arrived meanwhile
    :return: jobs to go on with when others had their turn
    :raises StoreUnavailable: some have none yet, and may be scheduled
        again: what was claimed for them is found then
    """
    waiting, returned = [*jobs], [job for job in jobs if not job.waits]
    if returned:
        for job in returned:
            job.attempt.waited = job.claim and job.state >= State.CLAIMED
        cycle.go_on(returned)
        waiting = in_time([job for job in jobs if job.waits], parts.health)
    unfinished: list[HostJob] = []
    while waiting:
        batch = SchedulingBatch(parts, cycle, next_jobs)
        waiting = in_time(batch.run(waiting), parts.health)
        unfinished += batch.unfinished
        next_jobs = tuple
        if batch.outdated:
            parts.source.refresh()
    return unfinished


class SchedulingBatch:
    """Selects and claims once for some jobs, on one snapshot.

    Of two jobs that name the same instance the queue hands out the second
    one once the first has its result, and the snapshot its claim.

    :param cycle: whose stages run
    :param next_jobs: gives batchable jobs that arrived meanwhile, if any
    :ivar outdated: whether the hosts have to be read again: a claim was lost,
        or an instance moves
    :ivar unfinished: jobs whose turn was over; nothing is assumed for them
    """

    def __init__(
        self, parts: Parts, cycle: HostCycle, next_jobs: NextJobs
    ) -> None:
        self._source, self._claimer = parts.source, parts.claimer
        self._health, self._queue = parts.health, parts.queue
        self._journal = parts.journal
        self._cycle, self._next_jobs = cycle, next_jobs
        self._overlay = Overlay(self._source.current().hosts)
        for stage in (cycle.recall, cycle.select, cycle.place_pod):
            stage.overlay = self._overlay
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
                self._forget()
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
                self._run(job)
            except errors.StoreUnavailable:
                # The fault is not the request's: it waits for the database.
                raise
            except errors.NoValidHost as error:
                self._ask_again(job, error)
            except errors.SchedulerError as error:
                self._cycle.answer.refuse(job, error)
            except time_slice.TimeSliceOver:
                self.unfinished.append(job)
            if job.state is State.SELECTED:
                selected.append(job)
            elif job.state is State.CLAIMED:
                self._cycle.go_on([job])
        self._health.time('choose', time.perf_counter() - start)
        return selected

    def _run(self, job: HostJob) -> None:
        """Run the stages before the claim for a job that is QUEUED."""
        cycle, table, one = self._cycle, self._overlay.table, (job,)
        try:
            for stage in cycle.before:
                if job.kind not in stage.kinds:
                    continue
                stage.run(one, table)
                if job.away or job.state is not State.QUEUED:
                    break
        finally:
            self._overlay.take_back()
        if job.claim and job.state is State.SELECTED:
            for stage in cycle.entered_for(job):
                stage.prepare(job)

    def _ask_again(self, job: HostJob, error: errors.NoValidHost) -> None:
        """Have a job's hosts found out anew; else hold its refusal back."""
        table = self._overlay.table
        entered = self._cycle.entered_for(job)
        if any(stage.forget(job, table) for stage in entered):
            self.unfinished.append(job)
        else:
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
            job.state = State.CLAIMED
            move = move or job.move
            if job.message.trace is not None and pending is not None:
                _trace_claim(job, job.message.trace, pending, len(jobs))
        # Before the snapshot is brought up to date: replies travel meanwhile.
        self._cycle.advance(jobs)
        if pending is None:
            return
        if move:
            # The overlay shows an instance that moves in one place only.
            self._forget()
            self.outdated = True
            return
        self._claimed = True
        self._journal.apply(Ended(pending.instances), self._overlay)
        self._source.advance(pending)

    def _claim_each(self, jobs: Sequence[HostJob], together: str) -> None:
        """Claim job by job what could not be claimed together.

        The claims travel together. The snapshot lacks what they take.

        :param together: why the claim of all is lost
        """
        self.outdated = True
        self._forget()
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
            self._cycle.answer.count_lost_claim(job, why)
            if not job.done():
                self._again.append(job)

    def _forget(self) -> None:
        """Forget all that is assumed, if anything is."""
        if self._overlay.assumes:
            self._journal.apply(Ended(-1), self._overlay)

    def _settle_refusals(self) -> None:
        """Refuse jobs, or schedule them again where a host may fit by now.

        A refusal holds where nothing that was assumed before it came to
        nothing, and the snapshot was current after the job came. Where it was
        not, jobs that can be claimed for do not wait until it is.
        """
        current_at = max(self._current_at, self._source.current_at)
        doubtful = []
        for job, error in self._refused:
            came_at = max((job.queued_at, *job.checked.values()))
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
            for stage in self._cycle.entered_for(job):
                stage.forget(job, None)
            (self.unfinished if later else self._again).append(job)

    def _refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Refuse a job, or schedule it again with VCPU for PCPU."""
        if isinstance(error, errors.NoValidHost):
            entered, table = self._cycle.entered_for(job), self._overlay.table
            for stage in entered:
                stage.forget(job, None)
            if any(each.check_refusal(job, error, table) for each in entered):
                return
        self._cycle.answer.refuse(job, error)
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


def in_time(jobs: Sequence[J], health: Health) -> list[J]:
    """Return the jobs whose deadline has not passed; fail the others."""
    kept = []
    for job in jobs:
        if job.state is State.QUEUED and is_late(job.deadline):
            health.count('requests_expired')
            job.fail(errors.TooLate())
        else:
            kept.append(job)
    return kept


def undecided(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs without a result that no stage has taken away.

    What was selected for them is forgotten: it is not known what was claimed.
    """
    left = [job for job in jobs if not (job.away or job.done())]
    for job in left:
        if job.state is State.SELECTED:
            job.begin_anew()
    return left
