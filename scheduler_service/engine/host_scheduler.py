"""Schedules host jobs: batch after batch, until each job has a result.

It belongs to the engine's thread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from scheduler_service.engine.batch import NextJobs, SchedulingBatch
from scheduler_service.engine.claiming import ClaimSender
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.explanations import Explainer
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import ExplainJob, HostJob
from scheduler_service.engine.outcomes import Outcomes
from scheduler_service.engine.ports import BatchingDelay, Claimer, Extenders
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.replies import HostReplies
from scheduler_service.engine.selection import OthersWait, Selector
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.pipeline import HostPipeline


class HostScheduler:
    """Schedules batches of host jobs.

    :param retries: how often a job that lost its claim is scheduled again
    :param others_wait: whether others wait than those of a lane
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        pipeline: HostPipeline,
        recorder: DecisionRecorder,
        rng: random.Random,
        retries: int,
        health: Health,
        outcomes: Outcomes,
        others_wait: OthersWait,
    ) -> None:
        settings = pipeline.settings
        self.pipeline = pipeline
        self.replies = HostReplies(
            snapshots.store, recorder, health, retries, settings.max_attempts
        )
        self._snapshots = snapshots
        self._health = health
        self._explainer = Explainer(pipeline, rng)
        self._selector = Selector(
            snapshots, pipeline, rng, outcomes, others_wait
        )
        self._sender = ClaimSender(snapshots, pipeline, health)
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
        self.pipeline = self._selector.pipeline = pipeline
        self._sender.use(pipeline)
        self._explainer.use(pipeline)
        self.replies.retries = retries
        self.replies.max_binds = pipeline.settings.max_attempts
        before = self.replies.extenders
        self.extend(extenders)
        self._retired = [
            retired for retired in self._retired if retired.has_pending
        ]
        if before is not None:
            before.retire()
            self._retired.append(before)

    def extend(self, extenders: Extenders | None) -> None:
        """Have extenders asked, and bind what is claimed."""
        self._selector.extenders = self.replies.extenders = extenders

    def claim_with(self, claimer: Claimer, queue: RequestQueue) -> None:
        """Have what is claimed in the store completed.

        :param queue: gets jobs back whose claims could not be
        """
        self._selector.claimer = self.replies.claimer = claimer
        self.replies.requeue = lambda job: queue.requeue([job])
        claimer.notify(queue.notify)

    @property
    def batching_delay_s(self) -> BatchingDelay | None:
        """For how long requests may gather, as the claimer says."""
        return self.replies.claimer.batching_delay_s

    @property
    def selections(self) -> int:
        """How often hosts were selected for a job."""
        return self._selector.selections

    @property
    def has_pending(self) -> bool:
        """Whether jobs wait for others, or are being explained."""
        extenders = self.replies.extenders
        return (
            self._explainer.busy
            or self.replies.claimer.has_pending
            or (extenders is not None and extenders.has_pending)
            or any(retired.has_pending for retired in self._retired)
        )

    def close(self) -> None:
        """Schedule nothing more."""
        self._explainer.stop()
        self.replies.claimer.stop()
        for one in (self.replies.extenders, *self._retired):
            if one is not None:
                one.stop()

    def schedule(
        self, jobs: Sequence[HostJob], next_jobs: NextJobs = tuple
    ) -> list[HostJob]:
        """Give every job its result, but for those whose turn is over.

        :param next_jobs: gives batchable jobs that arrived meanwhile
        :return: jobs to go on with when others had their turn
        :raises StoreUnavailable: some have none yet, and may be scheduled
            again: what was claimed for them is found then
        """
        waiting = [job for job in jobs if not job.done()]
        unfinished: list[HostJob] = []
        while waiting:
            batch = SchedulingBatch(
                self._snapshots,
                self._selector,
                self._sender,
                self.replies,
                self._health,
                next_jobs,
            )
            waiting = batch.run(waiting)
            unfinished += batch.unfinished
            next_jobs = tuple
            if waiting and batch.lost:
                self._snapshots.refresh()
        return unfinished

    def explain(self, job: ExplainJob) -> None:
        """Have it said what every filter says of the hosts.

        :raises StoreUnavailable: the job has no result yet
        """
        self._explainer.submit(job, self._snapshots.current().hosts)
