"""Schedules host jobs: batch after batch, until each job has a result.

It belongs to the engine's thread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.engine.batch import NextJobs, SchedulingBatch
from scheduler_service.engine.claiming import ClaimSender
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.extenders import ExtenderDispatcher
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import ExplainJob, HostJob
from scheduler_service.engine.replies import HostReplies
from scheduler_service.engine.selection import Selector
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.pipeline import HostPipeline, explain


class HostScheduler:
    """Schedules batches of host jobs.

    :param retries: how often a job that lost its claim is scheduled again
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        pipeline: HostPipeline,
        recorder: DecisionRecorder,
        rng: random.Random,
        retries: int,
        health: Health,
    ) -> None:
        settings = pipeline.settings
        self.pipeline = pipeline
        self.replies = HostReplies(
            snapshots.store, recorder, health, retries, settings.max_attempts
        )
        self._snapshots = snapshots
        self._health = health
        self._rng = rng
        self._selector = Selector(snapshots, pipeline, rng)
        policies = {one.policy for one in pipeline.filters if one.policy}
        self._sender = ClaimSender(
            snapshots, settings, frozenset(policies), health
        )

    def extend(self, extenders: ExtenderDispatcher) -> None:
        """Have extenders asked, and bind what is claimed."""
        self._selector.extenders = self.replies.extenders = extenders

    @property
    def waits_for_extenders(self) -> bool:
        """Whether jobs are with extenders and will come back."""
        extenders = self.replies.extenders
        return extenders is not None and extenders.has_pending

    def close(self) -> None:
        """Schedule nothing more."""
        if self.replies.extenders is not None:
            self.replies.extenders.stop()

    def schedule(
        self, jobs: Sequence[HostJob], next_jobs: NextJobs = tuple
    ) -> None:
        """Give every job its result.

        :param next_jobs: gives batchable jobs that arrived meanwhile
        :raises StoreUnavailable: some have none yet, and may be scheduled
            again: what was claimed for them is found then
        """
        waiting = [job for job in jobs if not job.future.done()]
        fresh = False
        while waiting:
            batch = SchedulingBatch(
                self._snapshots,
                self._selector,
                self._sender,
                self.replies,
                self._health,
                fresh,
                next_jobs,
            )
            waiting = batch.run(waiting)
            fresh, next_jobs = True, tuple

    def explain(self, job: ExplainJob) -> None:
        """Say what every filter says of the hosts; nothing is claimed.

        :raises StoreUnavailable: the job has no result yet
        """
        table = self._snapshots.current().hosts
        try:
            job.finish(self._explanation(table, job))
        except errors.SchedulerError as error:
            job.fail(error)

    def _explanation(
        self, table: HostTable, job: ExplainJob
    ) -> dict[str, Any]:
        request = job.request.with_ids()
        results = self.pipeline.filter_results(table, request)
        subject = explain.Subject(table, request, self.pipeline.settings)
        report: dict[str, Any] = {
            'request_id': request.request_id,
            'filters': explain.rejections(results, subject),
        }
        if job.host is not None:
            report['nodes'] = explain.host_report(results, subject, job.host)
        overlay = Overlay(table)
        try:
            result = self.pipeline.select(overlay, request, self._rng)
        except errors.NoValidHost as error:
            return {**report, 'error': error.to_dict()}
        finally:
            overlay.forget()
        return {
            **report,
            **result.explanation(),
            'placements': [one.placement for one in result.assignments],
        }
