"""The cycle of host jobs: its stages in their order, and what runs them.

A job comes from the queue and goes through the stages of ``CYCLE``. All of
them run on the engine's thread; those with a thread of their own take jobs
away, which come back to the queue and go on with the next stage, or are
looked at from the start where they are QUEUED. Where a job cannot go on, its
claim is released (:meth:`HostCycle.give_up`), and what stages did for it is
undone, the last stage first. Then it is refused, or it begins anew with
another attempt.

Stages before the claim run for one job after the other, on an overlay: each
sees what was selected before it. A long batch is claimed in portions: while
the database claims one, the next is selected (:class:`SchedulingBatch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from scheduler_service import errors, time_slice, tracing
from scheduler_service.columns import Overlay
from scheduler_service.engine.explanations import Explainer
from scheduler_service.engine.finishing import Answer
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import (
    ExplainJob,
    HostJob,
    Job,
    State,
    is_late,
)
from scheduler_service.engine.journal import Ended
from scheduler_service.engine.pods import PlacePod
from scheduler_service.engine.ports import (
    Claimer,
    ClaimLost,
    Parts,
    PendingClaims,
    Stage,
)
from scheduler_service.engine.selecting import Recall, Select
from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.pipeline import HostPipeline


class Place(NamedTuple):
    """A place in the cycle.

    :ivar takes: how far jobs have come that the stage runs for
    :ivar makes: how far they are after it
    :ivar thread: that works on them
    """

    takes: State
    makes: State
    thread: str


# The stages by name, in their order. *candidates*, *extenders*, *complete* and
# *bind* are an adapter's: where there is none, jobs go on to the next stage. A
# plug-in's may follow *claim* and those after it.
CYCLE = {
    'recall': Place(State.QUEUED, State.QUEUED, 'engine'),
    'candidates': Place(State.QUEUED, State.QUEUED, 'candidates'),
    'extenders': Place(State.QUEUED, State.QUEUED, 'extenders'),
    'select': Place(State.QUEUED, State.SELECTED, 'engine'),
    'claim': Place(State.SELECTED, State.CLAIMED, 'engine'),
    'complete': Place(State.CLAIMED, State.CLAIMED, 'placement'),
    'bind': Place(State.CLAIMED, State.CLAIMED, 'extenders'),
    'answer': Place(State.CLAIMED, State.DONE, 'engine'),
}
J = TypeVar('J', bound=Job)
# Long enough that a claim costs little each, short enough that the database
# has something to do while the next portion is selected.
_PORTION = 32
# How long hosts are selected for one batch while others wait, in seconds.
_BATCH_TURN_S = 0.1
NextJobs = Callable[[], Sequence[HostJob]]
# Jobs that are claimed together; None: none of them needs a claim.
Portion = tuple[list[HostJob], PendingClaims | None]


class Claim(Stage):
    """The claims of a portion; :class:`SchedulingBatch` sends and awaits them.

    In between it selects for the next portion.
    """

    name = 'claim'

    def __init__(self, claimer: Claimer) -> None:
        self._claimer = claimer

    def release(self, jobs: Sequence[HostJob]) -> None:
        """Release claims; what stages did for them is undone from then on.

        An earlier delivery may have been answered: then its claims stay,
        unless there is no room for them. A copy of the message that answers
        with a claim made here records its answer, which the release looks for.
        """
        made = [job for job in jobs if _is_released(job)]
        if made:
            self._claimer.give_up(made)


class HostCycle:
    """Runs the stages for batches of host jobs.

    :param retries: how often a job that lost its claim is scheduled again
    """

    def __init__(
        self, parts: Parts, pipeline: HostPipeline, retries: int
    ) -> None:
        self._parts = parts
        self._explainer = Explainer(pipeline, parts.rng, parts.queue)
        self.recall = Recall(parts, pipeline)
        self.select = Select(parts)
        self.place_pod = PlacePod(parts)
        self._claim = Claim(parts.claimer)
        self.answer = Answer(parts, retries)
        self.entered: list[Stage] = []
        self._use(pipeline)
        self.enter(())

    def use(
        self, pipeline: HostPipeline, retries: int, stages: Sequence[Stage]
    ) -> None:
        """Schedule by another configuration, from the next batch on.

        Jobs that its stages were looking at begin anew.

        :param stages: in place of those that are configured now
        """
        self._use(pipeline)
        self._explainer.use(pipeline)
        self.answer.retries = retries
        before = [each for each in self.entered if each.is_configured]
        self.entered = [each for each in self.entered if each not in before]
        self.enter(stages)
        for stage in before:
            stage.retire()

    def _use(self, pipeline: HostPipeline) -> None:
        self.pipeline = self.recall.pipeline = pipeline
        self._max_hosts = pipeline.settings.max_attempts
        self._parts.claimer.use(
            {
                name: pipeline.settings.default_ratio(name)
                for name in STANDARD_CLASSES
            },
            pipeline.group_policies.strict,
        )

    def enter(self, stages: Sequence[Stage]) -> None:
        """Add stages of an adapter, each at the place that it names."""
        self.entered = [*self.entered, *stages]
        order = [*CYCLE]
        for stage in (each for each in self.entered if each.after):
            # Those that follow the same stage are in the order of the option.
            same = [e.name for e in self.entered if e.after == stage.after]
            at = order.index(stage.after) + 1
            while at < len(order) and order[at] in same:
                at += 1
            order.insert(at, stage.name)
        own = (
            self.recall, self.select, self.place_pod, self._claim, self.answer,
        )  # fmt: skip
        self._stages = sorted(
            [*own, *self.entered], key=lambda stage: order.index(stage.name)
        )
        at = self._stages.index(self._claim)
        self.before, self._after = self._stages[:at], self._stages[at + 1 : -1]
        self.recall.allocates = any(each.allocates for each in self.entered)

    def recorded(self) -> Sequence[Stage]:
        """Return the stages that record what they do, the last one first."""
        return [each for each in reversed(self._stages) if each.is_recorded]

    def entered_for(self, job: HostJob) -> list[Stage]:
        """Return the stages of adapters that run for a job."""
        return [each for each in self.entered if job.kind in each.kinds]

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return what operators see of a stage, nothing where it is none."""
        found = (each for each in self.entered if each.name == name)
        return next((each.facts() for each in found), {})

    def close(self) -> None:
        """Schedule nothing more."""
        self._explainer.stop()
        for stage in self.entered:
            stage.stop()

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
        waiting, returned = [*jobs], [job for job in jobs if not job.waits]
        if returned:
            for job in returned:
                job.attempt.waited = job.claim and job.state >= State.CLAIMED
            self.go_on(returned)
            waiting = in_time(
                [job for job in jobs if job.waits], self._parts.health
            )
        unfinished: list[HostJob] = []
        while waiting:
            batch = SchedulingBatch(self._parts, self, next_jobs)
            waiting = in_time(batch.run(waiting), self._parts.health)
            unfinished += batch.unfinished
            next_jobs = tuple
            if batch.outdated:
                self._parts.source.refresh()
        return unfinished

    def go_on(self, jobs: Sequence[HostJob]) -> None:
        """Have jobs go on that have claims, or come back from a stage.

        Those that it could not bring any further are given up: they are
        refused, or QUEUED again.

        :raises StoreUnavailable: some go on later from where they are
        """
        failed = [job for job in jobs if job.attempt.failure is not None]
        others = [job for job in jobs if job.attempt.failure is None]
        if failed:
            self.give_up(failed)
        if others:
            self.advance(others)

    def advance(self, jobs: Sequence[HostJob]) -> None:
        """Run the stages after the claim that jobs have not passed."""
        source = self._parts.source
        table = (source.snapshot or source.current()).hosts
        for stage in self._after:
            taken = [
                job
                for job in jobs
                if job.claim
                and stage.name not in job.attempt.passed
                and job.kind in stage.kinds
            ]
            for job in taken:
                given = job.attempt
                given.passed += (stage.name,)
                given.is_repeated = given.selection is None or bool(given.held)
            if taken:
                stage.run(taken, table)
                jobs = [job for job in jobs if not job.away]
        if jobs:
            self.answer.run(jobs, table)

    def give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release the claims of jobs that failed.

        What stages did for them is undone by its records, last stage first.
        """
        claimed = [job for job in jobs if job.state >= State.CLAIMED]
        if claimed:
            self._claim.release(claimed)
            self._parts.source.refresh()
        for job in jobs:
            self._go_on_without(job)

    def _go_on_without(self, job: HostJob) -> None:
        failure, is_claimed = job.attempt.failure, job.state is State.CLAIMED
        assert failure is not None
        if is_claimed and isinstance(failure, errors.NoValidHost):
            self.answer.count_lost_claim(job, last=failure)
        elif (
            is_claimed
            and job.is_excluded
            and len(job.excluded_hosts) < self._max_hosts
        ):
            # Others are asked about again.
            job.begin_anew(scores=False)
        else:
            self.answer.refuse(job, failure)

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


def _is_released(job: HostJob) -> bool:
    attempt = job.attempt
    has_no_room = isinstance(attempt.failure, errors.NoValidHost)
    return has_no_room or job.is_excluded or not attempt.is_repeated


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
