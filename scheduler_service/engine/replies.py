"""What a host job gets: its placements or an error, counted and recorded.

The engine's thread calls it, and extender threads for the jobs that they
have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.claiming import ScheduledJob
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.outcomes import Recalled
from scheduler_service.engine.ports import Claimer, EmbeddedClaimer, Extenders
from scheduler_service.model import HostsAnswer, Placement
from scheduler_service.pipeline import explain
from scheduler_service.store.claims import released_claims
from scheduler_service.store.connection import Store
from scheduler_service.store.records.decisions import Decision

KIND = 'select_destinations'


class HostReplies:
    """Finishes host jobs.

    :ivar retries: how often a job that lost its claim is scheduled again
    :ivar max_binds: how many hosts an extender may fail to bind
    :ivar extenders: bind what is claimed; None where there are none
    :ivar claimer: completes what is claimed in the store
    :ivar requeue: puts a job back into the request queue
    """

    def __init__(
        self,
        store: Store,
        recorder: DecisionRecorder,
        health: Health,
        retries: int,
        max_binds: int,
    ) -> None:
        self.extenders: Extenders | None = None
        self.claimer: Claimer = EmbeddedClaimer()
        self.requeue: Callable[[HostJob], None] = _keep
        self._store = store
        self._recorder = recorder
        self._lock = threading.Lock()
        self._health = health
        self.retries = retries
        self.max_binds = max_binds

    def finish(self, one: ScheduledJob) -> None:
        """Finish a job, once an extender has bound what it is to bind."""
        why = one.result.explanation() if one.job.explain else None
        job, repeated = one.job, bool(one.before) or one.job.contested

        def finish_chosen(answer: HostsAnswer) -> None:
            # What other requests claimed is not recorded with this claim.
            if one.before:
                job.finish_recorded(answer)
            else:
                self._finish_claimed(job, answer)
            one.complete = True
            self._record_complete(one)

        self._complete(
            job, one.table, one.placements, why, finish_chosen, repeated
        )

    def repeat(
        self, job: HostJob, table: HostTable, placements: list[Placement]
    ) -> None:
        """Finish a job whose instances hold their claims already."""
        finish = job.finish_recorded
        self._complete(job, table, placements, None, finish, True)

    def recall(
        self, job: HostJob, table: HostTable, recalled: Recalled
    ) -> None:
        """Finish a job with the outcome that its message has already."""
        if recalled.held:
            # Whether they were bound before is not known.
            placements = recalled.result.placements

            def finish(answer: HostsAnswer) -> None:
                self._finish_claimed(job, answer)

            self._complete(job, table, placements, None, finish, True)
        else:
            recalled.settle(job)

    def _finish_claimed(self, job: HostJob, answer: HostsAnswer) -> None:
        """Answer with claims of this request.

        Where it took time to complete them, another copy of the message may
        have given them up: then the answer is recorded before, which only one
        of the two can do.
        """
        extenders = self.extenders
        at_once = isinstance(self.claimer, EmbeddedClaimer) and not (
            extenders is not None and extenders.binds(job.request)
        )
        if at_once or not job.contested:
            job.finish(answer)
        else:
            job.finish_recorded(answer)

    def _complete(
        self,
        job: HostJob,
        table: HostTable,
        placements: list[Placement],
        why: dict[str, Any] | None,
        finish: Callable[[HostsAnswer], None],
        repeated: bool,
    ) -> None:
        """Complete what is claimed in the store; then have it bound.

        :param repeated: an earlier delivery may have completed it
        """

        def bind() -> None:
            self._bind(job, table, placements, why, finish)

        if not job.claim:
            bind()
            return
        self.claimer.complete(
            job,
            placements,
            repeated,
            bind,
            lambda error: self._give_up_claims(
                job, placements, repeated, error
            ),
        )

    def _give_up_claims(
        self,
        job: HostJob,
        placements: list[Placement],
        repeated: bool,
        error: errors.SchedulerError,
    ) -> None:
        """Release what could not be completed, and schedule the job again.

        Where it is not for lack of room, the job is refused. An earlier
        delivery may have been answered: then its claims stay.
        """
        lost = isinstance(error, errors.NoValidHost)
        if lost or not repeated:
            self._release(job, placements)
        if not lost:
            self.refuse(job, error)
            return
        self.count_lost_claim(job)
        if not job.done():
            self.requeue(job)

    def _bind(
        self,
        job: HostJob,
        table: HostTable,
        placements: list[Placement],
        why: dict[str, Any] | None,
        on_bound: Callable[[HostsAnswer], None],
    ) -> None:
        """Have an extender bind placements, if one is to; then finish."""
        group = job.request.instance_group
        if group and group not in table.groups:
            # It has no policy that anybody could keep.
            self._health.count('requests_with_unknown_group')

        def finish() -> None:
            self._health.count('requests', 'chosen')
            request_id = str(job.request.request_id)
            on_bound(
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
        extenders: Extenders,
        job: HostJob,
        placements: list[Placement],
    ) -> Callable[[errors.SchedulerError], None]:
        """Return what releases placements, and schedules the job again."""

        def release(error: errors.SchedulerError) -> None:
            self._release(job, placements)
            if len(job.excluded_hosts) >= self.max_binds:
                self.refuse(job, error)
                return
            job.extender_scores = None
            extenders.requeue(job)

        return release

    def _release(self, job: HostJob, placements: list[Placement]) -> None:
        """Release claims of a job that come to nothing.

        Those that another copy of its message was answered with stay.
        """
        places = {
            placement.instance_uuid: (
                placement.selected.host,
                placement.selected.node,
            )
            for placement in placements
        }
        self._store.write(
            lambda writer: released_claims.give_up(
                writer, places, job.move, job.key
            )
        )

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why."""
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        decisive = explain.decisive_filter(error.facts)
        self._health.count('refusals', f'{decisive} {error.name}')
        if job.claim:
            self._record(job, error.name, {'error': error.to_dict()})

    def count_lost_claim(self, job: HostJob) -> None:
        """Count a lost claim; refuse a job that lost too often."""
        job.attempts += 1
        if job.attempts > self.retries:
            error = errors.MaxRetriesExceeded(
                'Every attempt lost its claim to another request '
                f'({self.retries} retries)',
                request_id=job.request.request_id,
                attempts=job.attempts,
            )
            self.refuse(job, error)

    def record(self, one: ScheduledJob) -> None:
        """Record what was chosen for a job, and why, once it is claimed.

        The reasons are of the engine's thread, which calls this when all is
        handed over; another one may complete the claim, before or after.
        """
        if one.job.claim:
            explanation = one.result.explanation()
            why = {'placements': one.placements, 'explanation': explanation}
            one.decision = self._decision(one.job, 'chosen', why)
            self._record_complete(one)

    def _record_complete(self, one: ScheduledJob) -> None:
        with self._lock:
            decision = one.decision if one.complete else None
            if decision is not None:
                one.decision = None
                self._recorder.put(decision)

    def _record(self, job: HostJob, outcome: str, why: Any) -> None:
        self._recorder.put(self._decision(job, outcome, why))

    def _decision(self, job: HostJob, outcome: str, why: Any) -> Decision:
        request_id = job.request.request_id
        document = {'project_id': job.request.project_id, **why}
        origin = job.message.origin(request_id)
        return Decision.of(request_id, KIND, outcome, document, *origin)


def _keep(job: HostJob) -> None:
    """Do nothing: claims that are embedded are never incomplete."""
