"""The cycle of host jobs: its stages in their order, and what runs them.

A job comes from the queue and goes through the stages of ``CYCLE``. All of
them run on the engine's thread; those with a thread of their own take jobs
away, which come back to the queue and go on with the next stage, or are
looked at from the start where they are QUEUED. Where a job cannot go on, its
claim is released (:meth:`HostCycle.give_up`), and what stages did for it is
undone, the last stage first. Then it is refused, or it begins anew with
another attempt.

Stages before the claim run for the jobs of a batch one after the other: see
:mod:`scheduler_service.engine.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scheduler_service import errors
from scheduler_service.engine.explanations import Explainer
from scheduler_service.engine.jobs import ExplainJob, HostJob, State
from scheduler_service.engine.ports import (
    Claimer,
    Parts,
    Stage,
)
from scheduler_service.engine.selecting import Answer, PlacePod, Recall, Select
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
    'bind': Place(State.CLAIMED, State.CLAIMED, 'extenders or kube-bind'),
    'answer': Place(State.CLAIMED, State.DONE, 'engine'),
}


class Claim(Stage):
    """The claims of a portion, which a batch sends and awaits.

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


def _is_released(job: HostJob) -> bool:
    attempt = job.attempt
    has_no_room = isinstance(attempt.failure, errors.NoValidHost)
    return has_no_room or job.is_excluded or not attempt.is_repeated
