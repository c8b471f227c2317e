"""Chooses pools for DNS zones and stores them.

The row of a zone is its claim: the first daemon that inserts it wins, and
the others reply with its pool. The engine's thread alone calls
:class:`ZoneScheduler`, which keeps nothing between batches.
"""

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
        snapshots: SnapshotCache,
        pipeline: PoolPipeline,
        recorder: DecisionRecorder,
        rng: random.Random,
        health: Health,
    ) -> None:
        self._snapshots = snapshots
        self._pipeline = pipeline
        self._recorder = recorder
        self._rng = rng
        self._health = health

    def decide(self, jobs: Sequence[ZoneJob]) -> None:
        """Reply to every job; an error of one concerns no other.

        :raises StoreUnavailable: some jobs have no reply yet. They may be
            decided again: a pool that was stored for them is found then.
        """
        waiting = [job for job in jobs if not job.future.done()]
        while waiting:
            waiting = self._decide_once(self._snapshots.current(), waiting)

    def _decide_once(
        self, snapshot: Snapshot, jobs: Sequence[ZoneJob]
    ) -> list[ZoneJob]:
        """Choose and store pools; return the jobs to decide again.

        Those are jobs of a zone that another job of the batch names too, and
        all that were to be stored if another daemon stored one of the zones.
        """
        stored = self._stored_pools(jobs)
        to_store: dict[str, tuple[ZoneJob, PoolChoice]] = {}
        repeated: list[ZoneJob] = []
        for job in jobs:
            zone_id = str(job.zone.id)
            if job.keep and zone_id in stored:
                self._reply_with_stored(snapshot, job, stored[zone_id])
            elif zone_id in to_store:
                repeated.append(job)
            else:
                choice = self._choose(snapshot, job)
                if choice is None:
                    continue
                if job.keep:
                    to_store[zone_id] = job, choice
                else:
                    self._reply(job, choice)
        return repeated + self._store(list(to_store.values()))

    def _stored_pools(self, jobs: Sequence[ZoneJob]) -> dict[str, str]:
        """Return zone id -> pool id of zones that are in the store."""
        ids = [str(job.zone.id) for job in jobs if job.keep]
        if not ids:
            return {}
        with self._snapshots.autocommit_connection() as conn:
            return zones.pools_of(conn, ids)

    def _choose(self, snapshot: Snapshot, job: ZoneJob) -> PoolChoice | None:
        """Return the pool for a job; None where it was refused."""
        try:
            return self._pipeline.choose(
                job.caller, snapshot.pools, job.zone, self._rng
            )
        except errors.SchedulerError as error:
            job.fail(error)
            self._health.count('requests', error.name)
            if job.keep:
                self._record(job.zone, error.name, {'error': error.to_dict()})
            return None

    def _store(
        self, chosen: Sequence[tuple[ZoneJob, PoolChoice]]
    ) -> list[ZoneJob]:
        """Store the pools and reply.

        :return: all of the jobs if another daemon stored one of the zones
        """
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
                with self._snapshots.writer() as conn:
                    self._snapshots.store.write(work, conn)
            except db_exception.DBDuplicateEntry:
                return [job for job, _ in chosen]
        for job, choice in chosen:
            self._reply(job, choice)
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

    def _reply(self, job: ZoneJob, choice: PoolChoice) -> None:
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

    def _reply_with_stored(
        self, snapshot: Snapshot, job: ZoneJob, pool_id: str
    ) -> None:
        pool = snapshot.pools.get(pool_id)
        explanation = {
            'pools': len(snapshot.pools),
            'kept': True,
            'funnel': [],
        }
        job.finish(
            PoolAnswer(
                request_id=str(job.zone.request_id),
                zone_id=str(job.zone.id),
                pool_id=pool_id,
                pool_name=pool.name if pool else None,
                explanation=explanation if job.explain else None,
            )
        )

    def _record(
        self, zone: ZoneRequest, outcome: str, reasons: dict[str, Any]
    ) -> None:
        document = {'zone': zone.name, 'zone_id': zone.id, **reasons}
        self._recorder.put(
            Decision.of(zone.request_id, KIND, outcome, document)
        )
