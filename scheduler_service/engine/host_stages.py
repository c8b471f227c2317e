"""Schedules host jobs: batch after batch, until none can go on here.

It belongs to the engine's thread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from scheduler_service.engine.claiming import NextJobs, SchedulingBatch
from scheduler_service.engine.explanations import Explainer
from scheduler_service.engine.finishing import Finisher
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import ExplainJob, HostJob, State
from scheduler_service.engine.ports import (
    Claimer,
    Completer,
    DecisionLog,
    Extenders,
    HostSource,
)
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.selecting import Selector
from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.pipeline import HostPipeline


class HostStages:
    """Schedules batches of host jobs.

    :param retries: how often a job that lost its claim is scheduled again
    :param queue: gets jobs back from the stages that wait
    """

    def __init__(
        self,
        source: HostSource,
        claimer: Claimer,
        pipeline: HostPipeline,
        decisions: DecisionLog,
        rng: random.Random,
        retries: int,
        health: Health,
        queue: RequestQueue,
    ) -> None:
        self._finisher = Finisher(
            source,
            claimer,
            decisions,
            health,
            retries,
            pipeline.settings.max_attempts,
        )
        self._source = source
        self._claimer = claimer
        self._health = health
        self._explainer = Explainer(pipeline, rng, queue)
        self._selector = Selector(claimer, pipeline, rng, queue)
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
        self._claimer.use(
            {
                name: pipeline.settings.default_ratio(name)
                for name in STANDARD_CLASSES
            },
            frozenset(
                host_filter.policy
                for host_filter in pipeline.filters
                if host_filter.policy
            ),
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
        waiting = [job for job in jobs if _is_queued(job)]
        unfinished: list[HostJob] = []
        while waiting:
            batch = SchedulingBatch(
                self._source,
                self._selector,
                self._claimer,
                self._finisher,
                self._health,
                next_jobs,
            )
            waiting = batch.run(waiting)
            unfinished += batch.unfinished
            next_jobs = tuple
            if waiting and batch.lost:
                self._source.refresh()
        return unfinished

    def explain(self, job: ExplainJob) -> None:
        """Have it said what every filter says of the hosts.

        :raises StoreUnavailable: the job has no result yet
        """
        if not job.done():
            self._explainer.explain(job, self._source.current().hosts)


def _is_queued(job: HostJob) -> bool:
    """Whether hosts are to be selected for a job."""
    return job.state is State.QUEUED and not (job.away or job.done())
