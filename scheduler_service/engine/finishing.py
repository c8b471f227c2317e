"""The stage *answer*: placements or a refusal, and what is recorded of it.

It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.ports import Parts, Stage
from scheduler_service.model import HostsAnswer
from scheduler_service.pipeline import explain
from scheduler_service.pipeline.selection import explanation


class Answer(Stage):
    """Answers jobs, and refuses them.

    :ivar retries: how often a job that lost its claim is scheduled again
    """

    name = 'answer'

    def __init__(self, parts: Parts, retries: int) -> None:
        self._record, self._health = parts.record, parts.health
        self.retries = retries

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Give jobs their placements; record why, as the answers travel.

        Where a stage after the claim took its time, another copy of the
        message may have given the claims up: then the answer has to be
        recorded before its caller gets it, which only one of the two can do.
        """
        self._health.count('requests', 'chosen', by=len(jobs))
        for job in jobs:
            request, attempt = job.request, job.attempt
            selection = attempt.selection
            group = request.instance_group
            if group and group not in table.groups:
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
            if attempt.held or (attempt.waited and job.contested):
                job.finish_unrecorded(answer)
            else:
                job.finish(answer)
        for job in jobs:
            attempt = job.attempt
            if job.recorded and attempt.selection is not None:
                why = {
                    'placements': attempt.placements,
                    'explanation': attempt.selection.reasons,
                }
                self._record(job, 'chosen', why)

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why.

        Unless it can have VCPU for PCPU: then it is QUEUED for that.
        """
        if not job.fall_back(error):
            self._refuse(job, job.refusal or error)

    def _refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        decisive = explain.decisive_filter(error.facts)
        self._health.count('refusals', decisive, error.name)
        if job.recorded:
            self._record(job, error.name, {'error': error.to_dict()})

    def count_lost_claim(
        self,
        job: HostJob,
        why: str = '',
        last: errors.SchedulerError | None = None,
    ) -> None:
        """Count a lost claim; refuse a job that lost too often, in any form.

        :param why: what the store says; empty: another request was faster
        :param last: why a stage after the claim could not do its part
        """
        job.begin_anew()
        job.attempts += 1
        if job.attempts <= self.retries:
            return
        facts = {
            'request_id': job.request.request_id,
            'attempts': job.attempts,
            'excluded_hosts': job.excluded_hosts,
        }
        if why and job.request.forced:
            # No filter looked at the host before.
            text = f'No valid host was found. {why}'.rstrip('.')
            self._refuse(job, errors.NoValidHost(text, **facts))
            return
        why = why if last is None else f'The last one: {last}'
        lost = 'Every attempt lost its claim'
        lost += '' if why else ' to another request'
        text = f'{lost} ({self.retries} retries). {why}'.rstrip(' .')
        self._refuse(job, errors.MaxRetriesExceeded(text, **facts))
