"""What follows a claim: complete, bind, answer, record; or give up.

The engine's thread runs these stages. Those that have to wait for others take
jobs away, which come back to the queue and go on here; see ``ports``.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.ports import Completer, Extenders, Parts
from scheduler_service.model import HostsAnswer
from scheduler_service.pipeline import explain
from scheduler_service.pipeline.selection import explanation


class Finisher:
    """Brings claimed jobs to their answers, and refuses jobs.

    :ivar retries: how often a job that lost its claim is scheduled again
    :ivar max_binds: how many hosts an extender may fail to bind
    :ivar extenders: bind what is claimed; None where there are none
    :ivar completer: completes what is claimed in the store; None: that is
        all there is to it
    """

    def __init__(self, parts: Parts, retries: int, max_binds: int) -> None:
        self.extenders: Extenders | None = None
        self.completer: Completer | None = None
        self._source, self._claimer = parts.source, parts.claimer
        self._record, self._health = parts.record, parts.health
        self.retries = retries
        self.max_binds = max_binds

    def advance(self, jobs: Sequence[HostJob]) -> None:
        """Run for each job that is claimed the stage that follows.

        Those that a stage could not bring any further are given up: they are
        refused, or QUEUED again. Others that are QUEUED stay so.

        :raises StoreUnavailable: some go on later from where they are
        """
        failed, claimed, bound = [], [], []
        for job in jobs:
            if job.attempt.failure is not None:
                failed.append(job)
            elif job.state is State.QUEUED or job.state is State.DONE:
                pass
            elif job.state is State.CLAIMED and self.completer is not None:
                claimed.append(job)
            elif (
                self.extenders is not None
                and job.state is not State.BOUND
                and self.extenders.binds(job.request)
            ):
                assert self._source.snapshot is not None
                job.state = State.COMPLETED
                self.extenders.bind(job, self._source.snapshot.hosts)
            else:
                bound.append(job)
        if failed:
            self._give_up(failed)
        if claimed and self.completer is not None:
            for job in claimed:
                attempt = job.attempt
                attempt.is_repeated = attempt.selection is None or bool(
                    attempt.held
                )
            self.completer.complete(claimed)
        if bound:
            self._answer(bound)

    def _answer(self, jobs: Sequence[HostJob]) -> None:
        """Give jobs their placements; record why, as the answers travel.

        Where it took time to complete claims, another copy of the message may
        have given them up: then the answer has to be recorded before its
        caller gets it, which only one of the two can do.
        """
        self._health.count('requests', 'chosen', by=len(jobs))
        for job in jobs:
            request, attempt = job.request, job.attempt
            selection = attempt.selection
            snapshot, group = self._source.snapshot, request.instance_group
            if group and snapshot and group not in snapshot.hosts.groups:
                # It is without a policy that anybody could keep.
                self._health.count('requests_with_unknown_group')
            answer = HostsAnswer(
                request_id=str(request.request_id),
                placements=list(attempt.placements),
                explanation=explanation(selection.reasons)
                if job.explain and selection is not None
                else None,
            )
            # What other requests claimed is not recorded with this claim.
            if attempt.held or (job.contested and self._waited(job)):
                job.finish_unrecorded(answer)
            else:
                job.finish(answer)
        for job in jobs:
            attempt = job.attempt
            if job.claim and attempt.selection is not None:
                why = {
                    'placements': attempt.placements,
                    'explanation': attempt.selection.reasons,
                }
                self._record(job, 'chosen', why)

    def _waited(self, job: HostJob) -> bool:
        """Whether it took time to complete the claims of a job."""
        if not job.claim:
            return False
        extenders = self.extenders
        return self.completer is not None or (
            extenders is not None and extenders.binds(job.request)
        )

    def _give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release what could not be completed or bound.

        An earlier delivery may have been answered: then its claims stay,
        unless there is no room for them. A copy of the message that answers
        with a claim made here records its answer, which the release looks for.
        """
        released = [job for job in jobs if _is_released(job)]
        if released:
            self._claimer.give_up(released)
            self._source.refresh()
        for job in jobs:
            self._go_on_without(job)

    def _go_on_without(self, job: HostJob) -> None:
        failure, state = job.attempt.failure, job.state
        assert failure is not None
        if state is State.CLAIMED and isinstance(failure, errors.NoValidHost):
            self.count_lost_claim(job, f'The last one: {failure}')
        elif (
            state is State.COMPLETED
            and isinstance(failure, errors.ExtenderFailed)
            and len(job.excluded_hosts) < self.max_binds
        ):
            # Others are asked about again.
            job.begin_anew(scores=False)
        else:
            self.refuse(job, failure)

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why.

        Unless it can have VCPU for PCPU: then it is QUEUED for that.
        """
        if job.fall_back(error):
            return
        error = job.refusal or error
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        decisive = explain.decisive_filter(error.facts)
        self._health.count('refusals', decisive, error.name)
        if job.claim:
            self._record(job, error.name, {'error': error.to_dict()})

    def count_lost_claim(self, job: HostJob, why: str = '') -> None:
        """Count a lost claim; refuse a job that lost too often.

        :param why: it was lost; empty: to another request
        """
        job.begin_anew()
        job.attempts += 1
        if job.attempts > self.retries:
            lost = 'Every attempt lost its claim'
            error = errors.MaxRetriesExceeded(
                f'{lost}{"" if why else " to another request"} '
                f'({self.retries} retries). {why}'.rstrip(' .'),
                request_id=job.request.request_id,
                attempts=job.attempts,
                excluded_hosts=job.excluded_hosts,
            )
            self.refuse(job, error)


def _is_released(job: HostJob) -> bool:
    if job.state is State.COMPLETED:
        return True
    lost = isinstance(job.attempt.failure, errors.NoValidHost)
    return job.state is State.CLAIMED and (lost or not job.attempt.is_repeated)
