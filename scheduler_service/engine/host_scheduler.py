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
from scheduler_service.engine.claiming import ClaimSender, ScheduledJob
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.extenders import ExtenderDispatcher
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import ExplainJob, HostJob
from scheduler_service.engine.replies import HostReplies
from scheduler_service.engine.selection import Selector
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import Placement
from scheduler_service.pipeline import HostPipeline, explain
from scheduler_service.store.claims import lifecycle


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
        self.pipeline = pipeline
        self._snapshots = snapshots
        self._health = health
        self._rng = rng
        self._retries = retries
        self._replies = HostReplies(recorder, health)
        self._selector = Selector(snapshots, pipeline, rng)
        policies = {one.policy for one in pipeline.filters if one.policy}
        self._sender = ClaimSender(
            snapshots, pipeline.settings, frozenset(policies), health
        )

    @property
    def extenders(self) -> ExtenderDispatcher | None:
        """What asks extenders; None where there are none."""
        return self._selector.extenders

    @extenders.setter
    def extenders(self, dispatcher: ExtenderDispatcher) -> None:
        self._selector.extenders = dispatcher

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
                self,
                self._health,
                fresh,
                next_jobs,
            )
            waiting = batch.run(waiting)
            fresh, next_jobs = True, tuple

    def close(self) -> None:
        """Schedule nothing more."""
        if self.extenders is not None:
            self.extenders.stop()

    def selected(self, scheduled: ScheduledJob) -> None:
        """Finish a job, once an extender has bound what it is to bind."""
        job, placements = scheduled.job, scheduled.placements
        self._bind(
            job,
            scheduled.table,
            placements,
            lambda: self._replies.finish(
                job, placements, scheduled.result, scheduled.table
            ),
        )

    def repeated(self, job: HostJob, placements: list[Placement]) -> None:
        """Finish a job whose instances hold their claims already."""
        snapshot = self._snapshots.snapshot
        assert snapshot is not None
        self._bind(
            job,
            snapshot.hosts,
            placements,
            lambda: self._replies.finish(job, placements),
        )

    def record(self, scheduled: ScheduledJob) -> None:
        """Record what a job got, and why."""
        self._replies.record(
            scheduled.job,
            scheduled.placements,
            scheduled.result,
            scheduled.table,
        )

    def refused(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Finish a job with an error, count it, and record why."""
        self._replies.refuse(job, error)

    def claim_lost(self, job: HostJob) -> None:
        """Count a lost claim; give up on a job that lost too often."""
        job.attempts += 1
        if job.attempts > self._retries:
            error = errors.MaxRetriesExceeded(
                'Every attempt lost its claim to another request '
                f'({self._retries} retries)',
                request_id=job.request.request_id,
                attempts=job.attempts,
            )
            self.refused(job, error)

    def _bind(
        self,
        job: HostJob,
        table: HostTable,
        placements: list[Placement],
        on_bound: Any,
    ) -> None:
        """Have an extender bind placements, if one is to; then go on."""
        extenders = self.extenders
        if (
            extenders is None
            or not job.claim
            or not extenders.binds(job.request)
        ):
            on_bound()
            return

        def on_failed(error: errors.SchedulerError) -> None:
            uuids = [one.instance_uuid for one in placements]
            self._snapshots.store.write(
                lambda writer: lifecycle.release(writer, uuids)
            )
            if len(job.excluded_hosts) >= self.pipeline.settings.max_attempts:
                self.refused(job, error)
                return
            job.extender_scores = None
            extenders.requeue(job)

        extenders.bind(job, table, placements, on_bound, on_failed)

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
