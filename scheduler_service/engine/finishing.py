"""What follows a claim: complete, bind, answer, record; or give up.

The engine's thread runs these stages. Those that have to wait for others take
jobs away, which come back to the queue and go on here; see ``ports``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.ports import (
    Claimer,
    Completer,
    DecisionLog,
    Extenders,
    HostSource,
)
from scheduler_service.model import HostsAnswer
from scheduler_service.pipeline import explain

KIND = 'select_destinations'


class Finisher:
    """Brings claimed jobs to their answers, and refuses jobs.

    :ivar retries: how often a job that lost its claim is scheduled again
    :ivar max_binds: how many hosts an extender may fail to bind
    :ivar extenders: bind what is claimed; None where there are none
    :ivar completer: completes what is claimed in the store; None: that is
        all there is to it
    """

    def __init__(
        self,
        source: HostSource,
        claimer: Claimer,
        decisions: DecisionLog,
        health: Health,
        retries: int,
        max_binds: int,
    ) -> None:
        self.extenders: Extenders | None = None
        self.completer: Completer | None = None
        self._source = source
        self._claimer = claimer
        self._decisions = decisions
        self._health = health
        self.retries = retries
        self.max_binds = max_binds

    def advance(self, jobs: Sequence[HostJob]) -> None:
        """Run the stages that follow for jobs that are claimed.

        Those that a stage could not bring any further are given up: they are
        refused, or QUEUED again.

        :raises StoreUnavailable: some go on later from where they are
        """
        failed = [job for job in jobs if job.failure is not None]
        if failed:
            self._give_up(failed)
        claimed = [job for job in jobs if job.state is State.CLAIMED]
        if claimed:
            self._complete(claimed)
        present = [job for job in jobs if not job.away]
        for job in present:
            if job.state is State.COMPLETED:
                self._bind(job)
        # Answers first: what follows happens as they travel.
        bound = [job for job in present
                 if job.state is State.BOUND and not job.away]  # fmt: skip
        if bound:
            self._health.count('requests', 'chosen', by=len(bound))
        for job in bound:
            self._answer(job)
        for job in bound:
            self._record_choice(job)

    def _complete(self, jobs: Sequence[HostJob]) -> None:
        """Have claims completed, all of a batch together."""
        if self.completer is None:
            for job in jobs:
                job.state = State.COMPLETED
            return
        for job in jobs:
            job.is_repeated = (
                job.selection is None or bool(job.held) or job.contested
            )
            # The table that the reasons refer to goes on changing.
            job.explain_selection()
        self.completer.complete(jobs)

    def _bind(self, job: HostJob) -> None:
        """Have an extender bind a job, if one is to."""
        extenders, snapshot = self.extenders, self._source.snapshot
        if (
            extenders is None
            or snapshot is None
            or not extenders.binds(job.request)
        ):
            job.state = State.BOUND
            return
        job.explain_selection()
        extenders.bind(job, snapshot.hosts)

    def _answer(self, job: HostJob) -> None:
        """Give a job its placements.

        Where it took time to complete them, another copy of the message may
        have given them up: then the answer is recorded before, which only one
        of the two can do.
        """
        group, snapshot = job.request.instance_group, self._source.snapshot
        if group and snapshot and group not in snapshot.hosts.groups:
            # It has no policy that anybody could keep.
            self._health.count('requests_with_unknown_group')
        answer = HostsAnswer(
            request_id=str(job.request.request_id),
            placements=list(job.placements),
            explanation=self._explanation(job) if job.explain else None,
        )
        # What other requests claimed is not recorded with this claim.
        if job.held or (self._waited(job) and job.contested):
            job.finish_recorded(answer)
        else:
            job.finish(answer)

    @staticmethod
    def _explanation(job: HostJob) -> dict[str, Any] | None:
        return None if job.selection is None else job.explain_selection()

    def _waited(self, job: HostJob) -> bool:
        """Whether it took time to complete the claims of a job."""
        extenders = self.extenders
        return job.claim and (
            self.completer is not None
            or (extenders is not None and extenders.binds(job.request))
        )

    def _give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release what could not be completed or bound.

        An earlier delivery may have been answered: then its claims stay,
        unless there is no room for them.

        :raises StoreUnavailable: it is done later
        """
        released = [job for job in jobs if _is_released(job)]
        if released:
            self._claimer.give_up(released)
            self._source.refresh()
        for job in jobs:
            self._go_on_without(job)

    def _go_on_without(self, job: HostJob) -> None:
        """Refuse a job that was given up, or have it scheduled again."""
        failure, state = job.failure, job.state
        assert failure is not None
        job.begin_anew()
        if state is State.CLAIMED and isinstance(failure, errors.NoValidHost):
            self.count_lost_claim(job)
        elif (
            state is State.COMPLETED
            and isinstance(failure, errors.ExtenderFailed)
            and len(job.excluded_hosts) < self.max_binds
        ):
            # Others are asked about again.
            job.extender_scores = None
        else:
            self.refuse(job, failure)

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why."""
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        decisive = explain.decisive_filter(error.facts)
        self._health.count('refusals', f'{decisive} {error.name}')
        if job.claim:
            self._decisions.record(
                job, KIND, error.name, {'error': error.to_dict()}
            )

    def count_lost_claim(self, job: HostJob) -> None:
        """Count a lost claim; refuse a job that lost too often."""
        job.begin_anew()
        job.attempts += 1
        if job.attempts > self.retries:
            error = errors.MaxRetriesExceeded(
                'Every attempt lost its claim to another request '
                f'({self.retries} retries)',
                request_id=job.request.request_id,
                attempts=job.attempts,
            )
            self.refuse(job, error)

    def _record_choice(self, job: HostJob) -> None:
        """Record what was chosen for a job, and why."""
        if job.claim and job.selection is not None:
            why = {
                'placements': job.placements,
                'explanation': job.explain_selection(),
            }
            self._decisions.record(job, KIND, 'chosen', why)


def _is_released(job: HostJob) -> bool:
    """Whether the claims of a job that is given up are released."""
    if job.state is State.COMPLETED:
        return True
    lost = isinstance(job.failure, errors.NoValidHost)
    return job.state is State.CLAIMED and (lost or not job.is_repeated)
