"""Claims of a batch, and what else the engine's thread does in the store.

Changes of claims that exist (releases, confirmations, moves given up) run
together where they are the same change, with as many statements as a single
job. It belongs to the engine's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

import msgspec
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.jobs import (
    Change,
    ClaimsJob,
    HostJob,
    OwnerCheck,
    ZoneJob,
)
from scheduler_service.engine.ports import Recalled
from scheduler_service.model import Placement, PoolAnswer, Request
from scheduler_service.pipeline import Assignment
from scheduler_service.store import claims, rows
from scheduler_service.store.claims import (
    lifecycle,
    outcomes,
    released_claims,
    stage_records,
)
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.connection import Writer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import (
    Outcomes,
    outcome_of,
    places_of,
)
from scheduler_service.store.writing import server_groups, zones

if TYPE_CHECKING:
    from scheduler_service.store.claims.pg_claims import PendingRelease

_encode = msgspec.json.Encoder().encode


class StoreClaimer:
    """Implements :class:`~scheduler_service.engine.ports.Claimer` on SQL.

    :param on_released: called with instances that held claims
    """

    def __init__(
        self,
        source: StoreHostSource,
        outcomes: Outcomes,
        on_released: Callable[[Iterable[str]], None] = lambda instances: None,
    ) -> None:
        self._source = source
        self._outcomes = outcomes
        self._on_released = on_released
        self._ratios: Mapping[str, float] = {}
        self._policies: Collection[str] = ()
        # Releases that were sent, and their jobs.
        self._sent: tuple[PendingRelease, list[ClaimsJob]] | None = None

    def use(
        self, ratios: Mapping[str, float], policies: Collection[str]
    ) -> None:
        """Claim by another configuration from now on."""
        self._ratios, self._policies = ratios, policies

    def prepare(self, jobs: Sequence[HostJob]) -> claims.ClaimBatch | None:
        """Return the claims that jobs need; None: no job needs a claim."""
        needed: list[claims.Claim] = []
        for job in jobs:
            selection = job.attempt.selection
            if job.claim and selection is not None:
                _add_claims(needed, job, selection.assignments)
        if not needed:
            return None
        return claims.ClaimBatch(
            self._source.store, needed, self._ratios, self._policies
        )

    def send(self, *batches: claims.ClaimBatch) -> None:
        """Send batches, each to be claimed as a whole or not at all.

        All batches of a single round trip are sent together.

        :raises StoreUnavailable: the claims may have been made or not
        """
        source, prepared = self._source, []
        for batch in batches:
            if batch.statements:
                prepared.append(batch)
            else:
                with source.writer() as conn:
                    batch.send(conn)
        if prepared:
            with source.raw_connection() as conn:
                for batch in prepared:
                    source.pending = batch.send(conn)

    def give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release the claims of jobs that failed."""

        def release(writer: Writer) -> None:
            for job in jobs:
                places = places_of(job.attempt.placements)
                released_claims.give_up(writer, places, job.move, job.key)
                stage_records.forget_unused(writer.conn, job.attempt)

        with self._source.writer() as conn:
            self._source.store.write(release, conn)
        for job in jobs:
            self._on_released(job.request.instance_uuids)

    def find(
        self, instances: Sequence[str], moves: bool, kind: str = 'instance'
    ) -> dict[str, Placement]:
        """Return the placements that instances, or pods, hold claims of.

        :raises Conflict: a uuid is that of a consumer of the other kind
        """
        with self._source.autocommit_connection() as conn:
            placements = claims.placements(conn, instances, moves, kind)
        return msgspec.convert(placements, dict[str, Placement])

    def run_somewhere(self, instances: Sequence[str]) -> bool:
        """Whether a host reported any of these instances."""
        with self._source.autocommit_connection() as conn:
            return claims.run_somewhere(conn, instances)

    def held_of(
        self, providers: Sequence[int], instance: str
    ) -> dict[str, int]:
        """Return what an instance holds of a host, by resource class.

        :param providers: the host, and aggregates that give it a class
        """
        with self._source.autocommit_connection() as conn:
            return claims.held_of(conn, providers, instance)

    def recall(self, job: HostJob | ZoneJob) -> Recalled | None:
        """Return the outcome that a job's message has; None: none yet."""
        if not job.has_effect:
            return None
        source = self._source
        if not isinstance(job, HostJob):
            with source.autocommit_connection() as conn:
                return self._outcomes.recall(conn, job)
        instances, recalled = job.request.instance_uuids, None
        if job.attempts:
            # It may have lost to a consumer of the other kind.
            self.find(instances, False, job.kind)
        if (
            job.contested
            or job.attempt.extender_rounds
            or source.releases.any_of(instances, job.queued_at)
        ):
            if not job.message.redelivered:
                # Jobs of an instance come in order: these were before.
                made_here = source.releases.made_here
                job.see_releases({u: made_here.get(u, 0) for u in instances})
            with source.autocommit_connection() as conn:
                recalled = self._outcomes.recall(conn, job)
        assert source.snapshot is not None
        job.see_releases(dict.fromkeys(instances, source.snapshot.revision))
        return recalled

    def pools_of(
        self, zone_ids: Sequence[str]
    ) -> Mapping[str, tuple[str, str | None]]:
        """Return (pool id, project id) of each zone that is stored."""
        with self._source.autocommit_connection() as conn:
            return zones.pools_of(conn, zone_ids)

    def store_zones(
        self, chosen: Sequence[tuple[ZoneJob, Any, PoolAnswer]]
    ) -> bool:
        """Store zones with their pools, and the outcomes of their jobs."""
        added = [
            zones.ZoneRow(
                id=str(job.request.id),
                name=str(job.request.name),
                pool_id=answer.pool_id,
                project_id=job.request.project_id,
                request_id=job.request.request_id,
            )
            for job, _, answer in chosen
        ]
        recorded = [
            outcome_of(job.key, answer, None)
            for job, _, answer in chosen
            if job.key is not None
        ]

        def work(writer: Writer) -> None:
            outcomes.add(writer.conn, recorded)
            zones.add(writer, added)

        try:
            with self._source.writer() as conn:
                self._source.store.write(work, conn)
        except db_exception.DBDuplicateEntry:
            return False
        return True

    def send_changes(self, jobs: Sequence[ClaimsJob]) -> None:
        """Send the releases that take a single round trip.

        The engine goes on meanwhile. :meth:`make_changes` has to follow.

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

    def make_changes(self, jobs: Sequence[ClaimsJob]) -> None:
        """Run jobs that change claims, no two of them the same instance's.

        Redelivered jobs run alone, after a look at their outcomes. So do all
        jobs where a job fails or waits for a lock: it delays no other job.

        :raises StoreUnavailable: some jobs have no result yet
        """
        # A job that waits for a lock: the loop below runs it alone.
        with contextlib.suppress(errors.StoreTimeout):
            self._finish_sent()
            unprocessed = _unprocessed(jobs)
            if len(unprocessed) > 1:
                self._run_together(unprocessed)
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
        self._on_released(released.consumers)
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
            # Nothing was written.
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
        """Make changes in the transaction that records their outcomes.

        :param jobs: a single job, or several that were not redelivered
        :raises DBDuplicateEntry: another copy of a message was faster; the
            outcome is to be recalled
        """

        def work(writer: Writer) -> tuple[list[Recalled], int]:
            first = jobs[0]
            if first.key is not None and first.message.redelivered:
                recalled = self._outcomes.recall(writer.conn, first)
                if recalled is not None:
                    return [recalled], 0
            results = _change(writer, jobs)
            recorded = [
                outcome_of(job.key, results[job], None)
                for job in jobs
                if job.key is not None
            ]
            outcomes.add(writer.conn, recorded)
            return [Recalled(results[job]) for job in jobs], writer.revision

        with self._source.writer() as conn:
            recalled, revision = self._source.store.write(work, conn)
        for job in jobs:
            if job.change in (Change.RELEASE, Change.DROP_MOVES):
                self._source.releases.add(job.instances, revision)
            self._on_released(job.instances)
        return recalled


def _add_claims(
    needed: list[claims.Claim],
    job: HostJob,
    assignments: Sequence[Assignment],
) -> None:
    request, attempt, key = job.request, job.attempt, job.key
    document, owner = _document(request), None
    if request.instance_group and attempt.table is not None:
        group = attempt.table.groups.get(request.instance_group)
        owner = None if group is None else group.project_id or ''
    for assignment in assignments:
        uuid, placement = assignment.uuid, assignment.placement
        selected = placement.selected
        is_present = uuid in attempt.present
        # Amounts and group are for audits.
        stored = {
            'instance_uuid': uuid,
            'selected': selected,
            'alternates': placement.alternates,
            'amounts': assignment.amounts,
        }
        shared: Mapping[str, int] = {}
        if attempt.table is not None:
            shared = attempt.table.providers(
                assignment.row, assignment.amounts
            )
        if shared:
            stored['shared'] = shared
        if owner is not None:
            stored['group'] = request.instance_group
        if is_present and job.moves_unsaid and attempt.table is not None:
            placed = attempt.table.instances.get(uuid)
            if placed is not None and placed.host == selected.host:
                # The host says by its flavor whether it is resized.
                stored['resized_to'] = request.flavor.flavorid
        needed.append(
            claims.Claim(
                uuid,
                assignment.host_id,
                selected.host,
                selected.node,
                assignment.amounts,
                assignment.ratios,
                request.project_id,
                request.request_id,
                document=document,
                placement=_encode(stored).decode(),
                is_present=is_present,
                group=request.instance_group,
                group_owner=owner,
                move=is_present and job.move,
                may_stay=job.moves_unsaid,
                key=key,
                records=[
                    (stage, documents[uuid])
                    for stage, documents in attempt.records.items()
                    if uuid in documents
                ],
                releases_seen=job.releases_seen.get(uuid, 0),
                kind=job.kind,
                shared=shared,
            )
        )


def _document(request: Request) -> str:
    """Return what is stored of an instance beside its place, as JSON."""
    document: dict[str, Any] = {
        'availability_zone': request.availability_zone,
        'flavor': {'flavorid': request.flavor.flavorid},
    }
    image = request.image
    if image is not None:
        meta = {'properties': image.properties} if image.properties else None
        document.update(image_id=image.id, image_meta=meta)
    return rows.document(document)


def _change(writer: Writer, jobs: Sequence[ClaimsJob]) -> dict[ClaimsJob, Any]:
    """Make changes of claims, equal changes together; return the results."""
    by_change: dict[Change, list[ClaimsJob]] = {}
    for job in jobs:
        by_change.setdefault(job.change, []).append(job)
    if len(jobs) > 1 and (len(by_change) > 1 or jobs[0].change in _ALONE):
        # Several statements lock rows: take the locks in a fixed order.
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
    # A message that was not redelivered has no outcome.
    return [job for job in jobs if not (job.done() or job.message.redelivered)]


def _sendable(
    jobs: Sequence[ClaimsJob],
) -> tuple[list[ClaimsJob], dict[str, str | None]]:
    """Return releases whose owners need not be read before they are made.

    :return: the jobs, and the project that each instance has to be of; None:
        any project. Jobs of a caller that may not act on instances of its own
        project are left to :meth:`StoreClaimer.make_changes`
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


# Changes that run together, with as many statements as a single job.
_TOGETHER: Mapping[
    Change, Callable[[Writer, Sequence[ClaimsJob]], Sequence[str]]
] = {
    Change.RELEASE: lambda writer, jobs: lifecycle.cancel(
        writer, _requests(jobs), _check_of(jobs)
    ),
    Change.CONFIRM: lambda writer, jobs: lifecycle.confirm(
        writer, dict.fromkeys(_requests(jobs)), _check_of(jobs)
    ),
    Change.DROP_MOVES: lambda writer, jobs: lifecycle.cancel(
        writer, _requests(jobs), _check_of(jobs), outcomes.MOVE
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
