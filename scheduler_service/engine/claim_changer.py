"""Runs jobs that change claims, many of them in one transaction.

It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine import claim_changes
from scheduler_service.engine.jobs import ClaimsJob
from scheduler_service.engine.outcomes import Outcomes, Recalled
from scheduler_service.engine.snapshot_cache import SnapshotCache

if TYPE_CHECKING:
    from scheduler_service.store.claims.pg_claims import PendingRelease


class ClaimChanger:
    """Gives jobs that change claims their results."""

    def __init__(self, snapshots: SnapshotCache, outcomes: Outcomes) -> None:
        self._snapshots = snapshots
        self._outcomes = outcomes
        # Releases that were sent, and their jobs.
        self._sent: tuple[PendingRelease, list[ClaimsJob]] | None = None

    def send(self, jobs: Sequence[ClaimsJob]) -> None:
        """Send releases that the database can make in one round trip.

        Others are decided meanwhile. :meth:`run` has to follow.

        :raises StoreUnavailable: it is not known whether they are made
        """
        self._sent = None
        snapshots = self._snapshots
        if snapshots.store.dialect != 'postgresql':
            return
        fresh = [job for job in jobs if not (job.done() or job.redelivered)]
        some, expected = claim_changes.releases_at_once(fresh)
        if not some:
            return
        from scheduler_service.store.claims.pg_claims import PendingRelease

        items = [
            (job.key, uuid)
            for job in some
            if job.key is not None
            for uuid in job.instances or ('',)
        ]
        with snapshots.writer() as conn:
            pending = PendingRelease(
                snapshots.store,
                conn,
                claim_changes.asked(some),
                expected,
                items,
            )
        snapshots.pending_release = pending
        self._sent = pending, some

    def run(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs of which no two name the same instance.

        What may be done already is looked up first, one job at a time. Where
        one cannot be run with the others, each is run by itself, and one that
        has to wait for a lock holds nobody else up.

        :raises StoreUnavailable: some have no result yet
        """
        try:
            self._finish_sent()
            fresh = [job for job in jobs
                     if not (job.done() or job.redelivered)]  # fmt: skip
            if len(fresh) > 1:
                self._run_together(fresh)
        except errors.StoreTimeout:
            # One waits for a lock: each is run by itself.
            pass
        waiting = [job for job in jobs if not job.done()]
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

    def _finish_sent(self) -> None:
        """Give the jobs of releases that were sent their results.

        Those that could not be made so get none.

        :raises StoreTimeout: one waits for a lock
        :raises StoreUnavailable: it is not known whether they are made
        """
        if self._sent is None:
            return
        (pending, jobs), self._sent = self._sent, None
        self._snapshots.finish_release()
        released = pending.wait()
        if released is None:
            return
        changed = claim_changes.results(jobs, released.consumers)
        for job, result in zip(jobs, changed, strict=True):
            if not job.done():
                job.future.set_result(result)

    def _run_together(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs in one transaction; none has an effect if one fails.

        :raises StoreTimeout: one waits for a lock
        """
        try:
            results = self._change(jobs)
        except (errors.Forbidden, db_exception.DBDuplicateEntry):
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
