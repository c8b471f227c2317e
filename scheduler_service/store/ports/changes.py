"""Changes of claims that exist: releases, confirmations, moves given up.

Jobs with the same change run together, with as many statements as a single
job. It belongs to the engine's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.jobs import Change, ClaimsJob, OwnerCheck
from scheduler_service.engine.ports import Recalled
from scheduler_service.store.claims import lifecycle, released_claims
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.connection import Writer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import Outcomes
from scheduler_service.store.writing import server_groups

if TYPE_CHECKING:
    from scheduler_service.store.claims.pg_claims import PendingRelease


class ClaimChanger:
    """Gives jobs that change claims their results."""

    def __init__(self, source: StoreHostSource, outcomes: Outcomes) -> None:
        self._source = source
        self._outcomes = outcomes
        # Releases that were sent, and their jobs.
        self._sent: tuple[PendingRelease, list[ClaimsJob]] | None = None

    def send(self, jobs: Sequence[ClaimsJob]) -> None:
        """Send the releases that take a single round trip.

        The engine goes on meanwhile. :meth:`run` has to follow.

        :raises StoreUnavailable: the releases may have been made or not
        """
        self._sent = None
        source = self._source
        if source.store.dialect != 'postgresql':
            return
        releases, expected = _sendable(_unprocessed(jobs))
        if not releases:
            return
        from scheduler_service.store.claims.pg_claims import PendingRelease

        items = [
            (job.key, uuid)
            for job in releases
            if job.key is not None
            for uuid in job.instances or ('',)
        ]
        with source.writer() as conn:
            pending = PendingRelease(
                source.store, conn, _requests(releases), expected, items
            )
        source.pending_release = pending
        self._sent = pending, releases

    def run(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs of which no two name the same instance.

        Redelivered jobs run alone, after a look at their outcomes. So do all
        jobs where a job fails or waits for a lock: it delays no other job.

        :raises StoreUnavailable: some jobs have no result yet
        """
        # A job that waits for a lock: the loop below runs it alone.
        with contextlib.suppress(errors.StoreTimeout):
            self._finish_sent()
            jobs_together = _unprocessed(jobs)
            if len(jobs_together) > 1:
                self._run_together(jobs_together)
        blocked: errors.StoreTimeout | None = None
        for job in jobs:
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
        """Set the results of the releases that were sent.

        Jobs get none where their releases take several round trips.

        :raises StoreTimeout: a release waits for a lock
        """
        if self._sent is None:
            return
        (pending, jobs), self._sent = self._sent, None
        self._source.finish_release()
        released = pending.wait()
        if released is None:
            return
        for job, result in _results(jobs, released.consumers).items():
            if not job.done():
                job.future.set_result(result)

    def _run_together(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs in one transaction; no job has an effect if any fails.

        :raises StoreTimeout: a job waits for a lock
        """
        try:
            results = self._change(jobs)
        except (errors.Forbidden, db_exception.DBDuplicateEntry):
            return
        self._source.refresh()
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
            # Another daemon recorded the outcome of the same message.
            job.message = msgspec.structs.replace(
                job.message, redelivered=True
            )
            [outcome] = self._change([job])
        self._source.refresh()
        if not job.done():
            outcome.settle(job)

    def _change(self, jobs: Sequence[ClaimsJob]) -> list[Recalled]:
        make = partial(self._outcomes.make_changes, jobs=jobs, change=_change)
        with self._source.writer() as conn:
            return self._source.store.write(make, conn)


def _change(writer: Writer, jobs: Sequence[ClaimsJob]) -> dict[ClaimsJob, Any]:
    """Make changes of claims, equal changes together; return the results."""
    by_change: dict[Change, list[ClaimsJob]] = {}
    for job in jobs:
        by_change.setdefault(job.change, []).append(job)
    if len(jobs) > 1 and (len(by_change) > 1 or jobs[0].change in _ALONE):
        # Several statements that lock rows: take the locks in one order.
        lifecycle.lock(writer.conn, (u for job in jobs for u in job.names))
    results: dict[ClaimsJob, Any] = {}
    for change, equal in by_change.items():
        if change in _TOGETHER:
            changed = _TOGETHER[change](writer, equal)
            results |= _results(equal, changed)
        else:
            for job in equal:
                results[job] = _ALONE[change](writer, job)
    return results


def _unprocessed(jobs: Sequence[ClaimsJob]) -> list[ClaimsJob]:
    """Return jobs without a result whose message cannot have an outcome."""
    return [job for job in jobs if not (job.done() or job.message.redelivered)]


def _sendable(
    jobs: Sequence[ClaimsJob],
) -> tuple[list[ClaimsJob], dict[str, str | None]]:
    """Return releases whose owners need not be read before they are made.

    :return: the jobs, and the project that each instance has to be of; None:
        any project. Jobs of a caller that may not act on instances of its own
        project are left to :meth:`ClaimChanger.run`
    """
    selected: list[ClaimsJob] = []
    expected: dict[str, str | None] = {}
    for job in jobs:
        if job.change is not Change.RELEASE:
            continue
        if job.check is not None:
            if not job.project_id:
                continue
            try:
                job.check(dict.fromkeys(job.instances, job.project_id))
            except errors.Forbidden:
                continue
        selected.append(job)
        expected.update(
            dict.fromkeys(job.instances, job.project_id if job.check else None)
        )
    return selected, expected


def _requests(jobs: Sequence[ClaimsJob]) -> dict[str, ReleaseRequest]:
    return {
        uuid: ReleaseRequest(job.message.sent_at, job.project_id)
        for job in jobs
        for uuid in job.instances
    }


def _check_of(jobs: Sequence[ClaimsJob]) -> OwnerCheck | None:
    """Return a check that calls the check of each job for its instances."""
    checks = [
        (frozenset(job.instances), job.check)
        for job in jobs
        if job.check is not None
    ]
    if not checks:
        return None

    def check(project_of: Mapping[str, str | None]) -> None:
        for instances, check_job in checks:
            mine = instances & project_of.keys()
            check_job({uuid: project_of[uuid] for uuid in mine})

    return check


def _results(
    jobs: Sequence[ClaimsJob], changed: Sequence[str]
) -> dict[ClaimsJob, list[str]]:
    of_all = frozenset(changed)
    return {job: sorted(of_all.intersection(job.instances)) for job in jobs}


def _confirm(writer: Writer, jobs: Sequence[ClaimsJob]) -> Sequence[str]:
    instances = dict.fromkeys(uuid for job in jobs for uuid in job.instances)
    return lifecycle.confirm(writer, instances, _check_of(jobs))


# Changes that run together, with as many statements as a single job.
_TOGETHER: Mapping[
    Change, Callable[[Writer, Sequence[ClaimsJob]], Sequence[str]]
] = {
    Change.RELEASE: lambda writer, jobs: lifecycle.cancel(
        writer, _requests(jobs), _check_of(jobs)
    ),
    Change.CONFIRM: _confirm,
    Change.DROP_MOVES: lambda writer, jobs: lifecycle.cancel_moves(
        writer, _requests(jobs), _check_of(jobs)
    ),
}
_ALONE: Mapping[Change, Callable[[Writer, ClaimsJob], Any]] = {
    Change.SUPERSEDE: lambda writer, job: released_claims.supersede(
        writer, job.instances, job.claimed_by
    ),
    Change.UNDO: lambda writer, job: released_claims.undo(
        writer, job.instances, str(job.claimed_by)
    ),
    Change.STORE_GROUP: lambda writer, job: (
        job.group and server_groups.put(writer, job.group)
    ),
}
