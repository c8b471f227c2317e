"""Runs jobs that change claims, many of them in one transaction.

It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.jobs import ClaimsJob
from scheduler_service.engine.outcomes import Outcomes, Recalled
from scheduler_service.engine.snapshot_cache import SnapshotCache


class ClaimChanger:
    """Gives jobs that change claims their results."""

    def __init__(self, snapshots: SnapshotCache, outcomes: Outcomes) -> None:
        self._snapshots = snapshots
        self._outcomes = outcomes

    def run(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs of which no two name the same instance.

        What may be done already is looked up first, one job at a time. Where
        one cannot be run with the others, each is run by itself, and one that
        has to wait for a lock holds nobody else up.

        :raises StoreUnavailable: some have no result yet
        """
        waiting = [job for job in jobs if not job.done()]
        fresh = [job for job in waiting if not job.redelivered]
        if len(fresh) > 1:
            self._run_together(fresh)
        blocked: errors.StoreTimeout | None = None
        for job in waiting:
            if job.done():
                continue
            try:
                self._run_alone(job)
            except errors.StoreTimeout as error:
                if blocked is not None:
                    raise
                blocked = error
        if blocked is not None:
            raise blocked

    def _run_together(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs in one transaction; none has an effect if one fails."""
        try:
            results = self._change(jobs)
        except (
            errors.Forbidden,
            errors.StoreTimeout,
            db_exception.DBDuplicateEntry,
        ):
            return
        self._snapshots.refresh()
        for job, result in zip(jobs, results, strict=True):
            if not job.done():
                result.settle(job)

    def _run_alone(self, job: ClaimsJob) -> None:
        try:
            [outcome] = self._change([job])
        except errors.Forbidden as error:
            # Nothing was written, and no other job is concerned.
            job.fail(error)
            return
        except db_exception.DBDuplicateEntry:
            if job.key is None:
                raise
            # Another daemon has the same message, and was faster.
            job.message = msgspec.structs.replace(
                job.message, redelivered=True
            )
            [outcome] = self._change([job])
        self._snapshots.refresh()
        if not job.done():
            outcome.settle(job)

    def _change(self, jobs: Sequence[ClaimsJob]) -> list[Recalled]:
        store = self._snapshots.store
        with self._snapshots.writer() as conn:
            return store.write(
                lambda writer: self._outcomes.change_claims(writer, jobs), conn
            )
