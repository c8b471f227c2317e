"""Changes of claims that exist: releases, confirmations, moves given up.

Jobs with the same change are made together, with as many statements as one of
them. It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        """Send releases that the database can make in one round trip.

        Others are decided meanwhile. :meth:`run` has to follow.

        :raises StoreUnavailable: it is not known whether they are made
        """
        self._sent = None
        source = self._source
        if source.store.dialect != 'postgresql':
            return
        fresh = [job for job in jobs if not (job.done() or job.redelivered)]
        some, expected = _at_once(fresh)
        if not some:
            return
        from scheduler_service.store.claims.pg_claims import PendingRelease

        items = [
            (job.key, uuid)
            for job in some
            if job.key is not None
            for uuid in job.instances or ('',)
        ]
        with source.writer() as conn:
            pending = PendingRelease(
                source.store,
                conn,
                _requests(some),
                expected,
                items,
            )
        source.pending_release = pending
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
        self._source.finish_release()
        released = pending.wait()
        if released is None:
            return
        changed = _results(jobs, released.consumers)
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
            # Another daemon has the same message, and was faster.
            job.message = msgspec.structs.replace(
                job.message, redelivered=True
            )
            [outcome] = self._change([job])
        self._source.refresh()
        if not job.done():
            outcome.settle(job)

    def _change(self, jobs: Sequence[ClaimsJob]) -> list[Recalled]:
        store = self._source.store
        with self._source.writer() as conn:
            return store.write(
                lambda writer: self._outcomes.make_changes(
                    writer, jobs, _change
                ),
                conn,
            )


def _change(writer: Writer, jobs: Sequence[ClaimsJob]) -> dict[ClaimsJob, Any]:
    """Make changes of claims, those of one kind together; return results."""
    by_change: dict[Change, list[ClaimsJob]] = {}
    for job in jobs:
        by_change.setdefault(job.change, []).append(job)
    if len(jobs) > 1 and (len(by_change) > 1 or jobs[0].change in _ALONE):
        # One after the other they must not lock rows in different orders.
        lifecycle.lock(writer.conn, (u for job in jobs for u in job.names))
    results: dict[ClaimsJob, Any] = {}
    for change, some in by_change.items():
        if change in _TOGETHER:
            changed = _TOGETHER[change](writer, some)
            results.update(zip(some, _results(some, changed), strict=True))
        else:
            for job in some:
                results[job] = _ALONE[change](writer, job)
    return results


def _at_once(
    jobs: Sequence[ClaimsJob],
) -> tuple[list[ClaimsJob], dict[str, str | None]]:
    """Return jobs that release, and whose the instances have to be.

    :return: the jobs, and the project that each instance has to be of; None:
        any. A caller that may not act on its own project's instances is left
        out: its instances are read first
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
    """Return who asked to release each instance, and when."""
    return {
        uuid: ReleaseRequest(job.message.sent_at, job.project_id)
        for job in jobs
        for uuid in job.instances
    }


def _check_of(jobs: Sequence[ClaimsJob]) -> OwnerCheck | None:
    """Return the checks of all jobs, each of its own instances, as one."""
    checks = [
        (frozenset(job.instances), job.check)
        for job in jobs
        if job.check is not None
    ]
    if not checks:
        return None

    def check(project_of: Mapping[str, str | None]) -> None:
        for instances, check_one in checks:
            mine = instances & project_of.keys()
            check_one({uuid: project_of[uuid] for uuid in mine})

    return check


def _results(
    jobs: Sequence[ClaimsJob], changed: Sequence[str]
) -> list[list[str]]:
    """Return for each job those of its instances that were changed."""
    of_all = frozenset(changed)
    return [sorted(of_all.intersection(job.instances)) for job in jobs]


def _release(writer: Writer, jobs: Sequence[ClaimsJob]) -> Sequence[str]:
    return lifecycle.cancel(writer, _requests(jobs), _check_of(jobs))


def _confirm(writer: Writer, jobs: Sequence[ClaimsJob]) -> Sequence[str]:
    instances = dict.fromkeys(uuid for job in jobs for uuid in job.instances)
    return lifecycle.confirm(writer, instances, _check_of(jobs))


def _drop_moves(writer: Writer, jobs: Sequence[ClaimsJob]) -> Sequence[str]:
    return lifecycle.cancel_moves(writer, _requests(jobs), _check_of(jobs))


def _supersede(writer: Writer, job: ClaimsJob) -> list[str]:
    return released_claims.supersede(writer, job.instances, job.claimed_by)


def _undo(writer: Writer, job: ClaimsJob) -> list[str]:
    return released_claims.undo(writer, job.instances, str(job.claimed_by))


def _store_group(writer: Writer, job: ClaimsJob) -> bool:
    assert job.group is not None
    return server_groups.put(writer, job.group)


# Changes that are made together, with as many statements as one of them.
_TOGETHER = {
    Change.RELEASE: _release,
    Change.CONFIRM: _confirm,
    Change.DROP_MOVES: _drop_moves,
}
_ALONE: Mapping[Change, Callable[[Writer, ClaimsJob], Any]] = {
    Change.SUPERSEDE: _supersede,
    Change.UNDO: _undo,
    Change.STORE_GROUP: _store_group,
}
