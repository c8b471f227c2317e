"""What a host job gets: its result or an error, counted and recorded.

The engine's thread calls it, and extender threads for the jobs that they
have.
"""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.model import HostsAnswer, Placement
from scheduler_service.pipeline import ScheduleResult
from scheduler_service.store.records.decisions import Decision

KIND = 'select_destinations'


class HostReplies:
    """Finishes host jobs."""

    def __init__(self, recorder: DecisionRecorder, health: Health) -> None:
        self._recorder = recorder
        self._health = health

    def finish(
        self,
        job: HostJob,
        placements: list[Placement],
        result: ScheduleResult | None = None,
        table: HostTable | None = None,
    ) -> None:
        """Give a job its placements.

        :param result: how they came about, None where they were promised
            before
        :param table: the table that they were selected on
        """
        self._health.count('requests', 'chosen')
        why = None
        if result is not None and table is not None and job.explain:
            why = result.explanation()
        job.finish(
            HostsAnswer(
                request_id=str(job.request.request_id),
                placements=placements,
                explanation=why,
            )
        )

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why."""
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        if job.claim:
            self._record(job, error.name, {'error': error.to_dict()})

    def record(
        self,
        job: HostJob,
        placements: list[Placement],
        result: ScheduleResult,
        table: HostTable,
    ) -> None:
        """Record what was claimed for a job, and why."""
        if job.claim:
            explanation = result.explanation()
            why = {'placements': placements, 'explanation': explanation}
            self._record(job, 'chosen', why)

    def _record(self, job: HostJob, outcome: str, why: Any) -> None:
        request_id = job.request.request_id
        self._recorder.put(Decision.of(request_id, KIND, outcome, why))
