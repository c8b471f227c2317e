"""What a host job gets: its placements or an error, counted and recorded.

The engine's thread calls it, and extender threads for the jobs that they
have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.claiming import ScheduledJob
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.extenders import ExtenderDispatcher
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.model import HostsAnswer, Placement
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store
from scheduler_service.store.records.decisions import Decision

KIND = 'select_destinations'


class HostReplies:
    """Finishes host jobs.

    :param retries: how often a job that lost its claim is scheduled again
    :param max_binds: how many hosts an extender may fail to bind
    :ivar extenders: bind what is claimed; None where there are none
    """

    def __init__(
        self,
        store: Store,
        recorder: DecisionRecorder,
        health: Health,
        retries: int,
        max_binds: int,
    ) -> None:
        self.extenders: ExtenderDispatcher | None = None
        self._store = store
        self._recorder = recorder
        self._health = health
        self._retries = retries
        self._max_binds = max_binds

    def finish(self, one: ScheduledJob) -> None:
        """Finish a job, once an extender has bound what it is to bind."""
        why = one.result.explanation() if one.job.explain else None
        self._bind(one.job, one.table, one.placements, why)

    def repeat(
        self, job: HostJob, table: HostTable, placements: list[Placement]
    ) -> None:
        """Finish a job whose instances hold their claims already."""
        self._bind(job, table, placements, None)

    def _bind(
        self,
        job: HostJob,
        table: HostTable,
        placements: list[Placement],
        why: dict[str, Any] | None,
    ) -> None:
        """Have an extender bind placements, if one is to; then finish."""

        def finish() -> None:
            self._health.count('requests', 'chosen')
            request_id = str(job.request.request_id)
            job.finish(
                HostsAnswer(
                    request_id=request_id,
                    placements=placements,
                    explanation=why,
                )
            )

        extenders = self.extenders
        if extenders is None or not job.claim:
            finish()
        elif extenders.binds(job.request):
            failed = self._unbound(extenders, job, placements)
            extenders.bind(job, table, placements, finish, failed)
        else:
            finish()

    def _unbound(
        self,
        extenders: ExtenderDispatcher,
        job: HostJob,
        placements: list[Placement],
    ) -> Callable[[errors.SchedulerError], None]:
        """Return what releases placements, and schedules the job again."""

        def release(error: errors.SchedulerError) -> None:
            uuids = [one.instance_uuid for one in placements]
            self._store.write(lambda writer: lifecycle.release(writer, uuids))
            if len(job.excluded_hosts) >= self._max_binds:
                self.refuse(job, error)
                return
            job.extender_scores = None
            extenders.requeue(job)

        return release

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why."""
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        if job.claim:
            self._record(job, error.name, {'error': error.to_dict()})

    def count_lost_claim(self, job: HostJob) -> None:
        """Count a lost claim; refuse a job that lost too often."""
        job.attempts += 1
        if job.attempts > self._retries:
            error = errors.MaxRetriesExceeded(
                'Every attempt lost its claim to another request '
                f'({self._retries} retries)',
                request_id=job.request.request_id,
                attempts=job.attempts,
            )
            self.refuse(job, error)

    def record(self, one: ScheduledJob) -> None:
        """Record what was claimed for a job, and why."""
        if one.job.claim:
            explanation = one.result.explanation()
            why = {'placements': one.placements, 'explanation': explanation}
            self._record(one.job, 'chosen', why)

    def _record(self, job: HostJob, outcome: str, why: Any) -> None:
        request_id = job.request.request_id
        self._recorder.put(Decision.of(request_id, KIND, outcome, why))
