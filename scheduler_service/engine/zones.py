"""Chooses pools for DNS zones and stores them: QUEUED to DONE.

The row of a zone is its claim: the first daemon that inserts it wins, and
the others reply with its pool. The engine's thread alone calls
:class:`ZoneStages`, which keeps nothing between batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.jobs import State, ZoneJob
from scheduler_service.engine.ports import Parts
from scheduler_service.filters.pools.built_in import PoolIDAttributeFilter
from scheduler_service.model import Pool, PoolAnswer, ZoneRequest
from scheduler_service.pipeline import PoolChoice, PoolPipeline


class ZoneStages:
    """Decides batches of zone jobs.

    :ivar pipeline: what pools are chosen by
    """

    def __init__(self, parts: Parts, pipeline: PoolPipeline) -> None:
        self._source, self._claimer = parts.source, parts.claimer
        self._keep_decision, self._health = parts.record, parts.health
        self._rng = parts.rng
        self.pipeline = pipeline

    def decide(self, jobs: Sequence[ZoneJob]) -> None:
        """Reply to every job; an error of one concerns no other.

        :raises StoreUnavailable: some jobs have no reply yet. They may be
            decided again: a pool that was stored for them is found then.
        """
        again = self._decide_once(jobs, is_again=False)
        while again:
            again = self._decide_once(again, is_again=True)

    def _recalled(self, job: ZoneJob) -> bool:
        recalled = self._claimer.recall(job)
        if recalled is None:
            return False
        recalled.settle(job)
        return True

    def _decide_once(
        self, jobs: Sequence[ZoneJob], is_again: bool
    ) -> list[ZoneJob]:
        """Choose and store pools; return the jobs to decide again.

        Those are jobs of a zone that another job of the batch names too, and
        all that were to be stored if another daemon stored one of the zones,
        or processed one of the messages.
        """
        snapshot = self._source.current()
        ids = [str(job.request.id) for job in jobs if job.keep]
        stored = self._claimer.pools_of(ids) if ids else {}
        to_store: dict[str, tuple[ZoneJob, PoolChoice, PoolAnswer]] = {}
        repeated: list[ZoneJob] = []
        for job in jobs:
            zone_id = str(job.request.id)
            if (is_again or job.message.redelivered) and self._recalled(job):
                continue
            if job.keep and zone_id in stored:
                self._reply_with_stored(snapshot, job, *stored[zone_id])
            elif zone_id in to_store:
                repeated.append(job)
            else:
                choice = self._choose(snapshot, job)
                if choice is None:
                    continue
                answer = PoolAnswer(
                    request_id=str(job.request.request_id),
                    zone_id=zone_id,
                    pool_id=choice.pool.id,
                    pool_name=choice.pool.name,
                    explanation=choice.explanation if job.explain else None,
                )
                if job.keep:
                    to_store[zone_id] = job, choice, answer
                else:
                    self._reply(job, choice, answer)
        if not to_store:
            return repeated
        chosen = [*to_store.values()]
        if not self._claimer.store_zones(chosen):
            return repeated + [job for job, *_ in chosen]
        for job, choice, answer in chosen:
            job.state = State.CLAIMED
            self._reply(job, choice, answer)
        return repeated

    def _choose(self, snapshot: Snapshot, job: ZoneJob) -> PoolChoice | None:
        """Return the pool for a job; None where it was refused."""
        pools = snapshot.pools if job.pools is None else job.pools
        try:
            choice = self.pipeline.choose(
                job.caller, pools, job.request, self._rng
            )
            if job.pools is not None:
                _check_candidate(job.pools, choice)
        except errors.SchedulerError as error:
            self._refuse(job, error)
            self._record(job, error.name, {'error': error.to_dict()})
            return None
        job.state = State.SELECTED
        return choice

    def _refuse(self, job: ZoneJob, error: errors.SchedulerError) -> None:
        job.fail(error)
        self._health.count('requests', error.name)

    def _reply(
        self, job: ZoneJob, choice: PoolChoice, answer: PoolAnswer
    ) -> None:
        self._health.count('requests', 'zone chosen')
        job.finish(answer)
        self._record(
            job,
            'chosen',
            {
                'pool_id': choice.pool.id,
                'pool_name': choice.pool.name,
                'explanation': choice.explanation,
            },
        )

    def _reply_with_stored(
        self,
        snapshot: Snapshot,
        job: ZoneJob,
        pool_id: str,
        project_id: str | None,
    ) -> None:
        try:
            job.caller.authorize_project(
                job.verb, project_id, f'zone {job.request.id}'
            )
            self._check_kept(snapshot, job, pool_id)
        except errors.SchedulerError as error:
            self._refuse(job, error)
            return
        pool = snapshot.pools.get(pool_id)
        explanation = {
            'pools': len(snapshot.pools),
            'kept': True,
            'funnel': [],
        }
        job.finish(
            PoolAnswer(
                request_id=str(job.request.request_id),
                zone_id=str(job.request.id),
                pool_id=pool_id,
                pool_name=pool.name if pool else None,
                explanation=explanation if job.explain else None,
            )
        )

    def _check_kept(
        self, snapshot: Snapshot, job: ZoneJob, pool_id: str
    ) -> None:
        """Check a stored pool by the attributes that its zone has now.

        A pool that the filters drop for the zone without attributes as well
        stays the zone's: then it is the pool or the filters that changed.

        :raises Conflict: it is the attributes that do not fit
        :raises SchedulerError: as from a filter, such as Forbidden
        """
        pool = snapshot.pools.get(pool_id)
        if pool is None or not job.request.attributes:
            return
        plain = msgspec.structs.replace(job.request, attributes={})
        rejected_by = self._rejecting_filter(snapshot, job, job.request, pool)
        if rejected_by is None or self._rejecting_filter(
            snapshot, job, plain, pool
        ):
            return
        raise errors.Conflict(
            f'Zone {job.request.id} is in pool {pool.name}, which the filter '
            f'{rejected_by} leaves out for its attributes now',
            zone_id=job.request.id,
            pool_id=pool_id,
            filter=rejected_by,
        )

    def _rejecting_filter(
        self,
        snapshot: Snapshot,
        job: ZoneJob,
        zone: ZoneRequest,
        pool: Pool,
    ) -> str | None:
        """Return the first filter that leaves a pool out; None: none does."""
        try:
            steps = self.pipeline.run_filters(
                job.caller, snapshot.pools, zone, self._rng, [pool]
            )
        except errors.ForcedPoolFilteredOut:
            return PoolIDAttributeFilter.name
        return next(
            (
                name
                for name, left in steps
                if all(other.id != pool.id for other in left)
            ),
            None,
        )

    def _record(
        self, job: ZoneJob, outcome: str, reasons: dict[str, Any]
    ) -> None:
        """Record a decision, but for those that only try out stored pools."""
        zone = job.request
        if job.keep or job.pools is not None:
            self._keep_decision(
                job,
                outcome,
                {'zone': zone.name, 'zone_id': zone.id, **reasons},
            )


def _check_candidate(
    candidates: Mapping[str, Pool], choice: PoolChoice
) -> None:
    """Check that a pool is one of those that the caller sent."""
    if choice.pool.id not in candidates:
        raise errors.NoValidPoolFound(
            f'The filter {choice.explanation["funnel"][-1]["filter"]} chose '
            f'pool {choice.pool.name}, which is not one of those that were '
            'sent',
            **choice.explanation,
        )
