"""Use case: a pool for a zone. The zone's row is its claim."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import ZoneJob
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import PoolAnswer, ZoneRequest
from scheduler_service.pipeline import PoolChoice, PoolPipeline
from scheduler_service.store.connection import Writer
from scheduler_service.store.records.decisions import Decision
from scheduler_service.store.writing import zones

KIND = 'schedule_zone'


class ZoneScheduler:
    """Decides batches of zone jobs."""

    def __init__(
        self,
        keeper: SnapshotCache,
        pipeline: PoolPipeline,
        recorder: DecisionRecorder,
        rng: random.Random,
        health: Health,
    ) -> None:
        self._health = health
        self.keeper = keeper
        self.pipeline = pipeline
        self.recorder = recorder
        self._rng = rng

    def decide(self, jobs: Sequence[ZoneJob]) -> None:
        """Answer every job, each for itself.

        :raises StoreUnavailable: some have no answer yet, and may be decided
            again: a pool that was kept for them is found then
        """
        waiting = [job for job in jobs if not job.future.done()]
        while waiting:
            waiting = self._round(self.keeper.current(), waiting)

    def _round(
        self, snapshot: Snapshot, jobs: Sequence[ZoneJob]
    ) -> list[ZoneJob]:
        """Choose and keep once; return the jobs to choose for again."""
        kept = self._kept(jobs)
        chosen: dict[str, tuple[ZoneJob, PoolChoice]] = {}
        again: list[ZoneJob] = []
        for job in jobs:
            zone_id = str(job.zone.id)
            if job.keep and zone_id in kept:
                self._answer_kept(snapshot, job, kept[zone_id])
            elif zone_id in chosen:
                again.append(job)
            else:
                choice = self._choose(snapshot, job)
                if choice is None:
                    continue
                if job.keep:
                    chosen[zone_id] = job, choice
                else:
                    self._answer(job, choice)
        return again + self._keep(list(chosen.values()))

    def _kept(self, jobs: Sequence[ZoneJob]) -> dict[str, str]:
        ids = [str(job.zone.id) for job in jobs if job.keep]
        if not ids:
            return {}
        with self.keeper.autocommit_connection() as conn:
            return zones.pools_of(conn, ids)

    def _choose(self, snapshot: Snapshot, job: ZoneJob) -> PoolChoice | None:
        try:
            return self.pipeline.choose(
                job.caller, snapshot.pools, job.zone, self._rng
            )
        except errors.SchedulerError as error:
            job.fail(error)
            self._health.count('requests', error.name)
            if job.keep:
                self._record(job.zone, error.name, {'error': error.to_dict()})
            return None

    def _keep(
        self, chosen: Sequence[tuple[ZoneJob, PoolChoice]]
    ) -> list[ZoneJob]:
        """Store the pools; return all jobs where one had a pool by now."""
        rows = [
            zones.ZoneRow(
                id=str(job.zone.id),
                name=job.zone.name,
                pool_id=choice.pool.id,
                project_id=job.zone.project_id,
                request_id=job.zone.request_id,
            )
            for job, choice in chosen
        ]

        def work(writer: Writer) -> None:
            zones.add(writer, rows)

        if rows:
            try:
                with self.keeper.writer() as conn:
                    self.keeper.store.write(work, conn)
            except db_exception.DBDuplicateEntry:
                return [job for job, _ in chosen]
        for job, choice in chosen:
            self._answer(job, choice)
            self._record(
                job.zone,
                'chosen',
                {
                    'pool_id': choice.pool.id,
                    'pool_name': choice.pool.name,
                    'explanation': choice.explanation(),
                },
            )
        return []

    def _answer(self, job: ZoneJob, choice: PoolChoice) -> None:
        self._health.count('requests', 'zone chosen')
        job.finish(
            PoolAnswer(
                request_id=str(job.zone.request_id),
                zone_id=str(job.zone.id),
                pool_id=choice.pool.id,
                pool_name=choice.pool.name,
                explanation=choice.explanation() if job.explain else None,
            )
        )

    def _answer_kept(
        self, snapshot: Snapshot, job: ZoneJob, pool_id: str
    ) -> None:
        pool = snapshot.pools.get(pool_id)
        told = {'pools': len(snapshot.pools), 'kept': True, 'funnel': []}
        job.finish(
            PoolAnswer(
                request_id=str(job.zone.request_id),
                zone_id=str(job.zone.id),
                pool_id=pool_id,
                pool_name=pool.name if pool else None,
                explanation=told if job.explain else None,
            )
        )

    def _record(self, zone: ZoneRequest, outcome: str, why: Any) -> None:
        why = {'zone': zone.name, 'zone_id': zone.id, **why}
        self.recorder.put(Decision.of(zone.request_id, KIND, outcome, why))
