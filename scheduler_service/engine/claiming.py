"""Claims what was selected for jobs: SELECTED -> CLAIMED, batch by batch.

A long batch goes in portions: while the database claims one portion, the
next is selected, on the same overlay. Jobs that arrive meanwhile join it. A
job that lost its claim is QUEUED again. It belongs to the engine's thread.
A claim is one type before it is sent, ``ClaimBatch``, and one while it is
under way, ``PendingClaim``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service import errors, time_slice
from scheduler_service.columns import Overlay
from scheduler_service.engine.finishing import Finisher
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.selecting import Selector
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import STANDARD_CLASSES, Placement, Request
from scheduler_service.pipeline import Assignment, HostPipeline
from scheduler_service.store import claims, rows

_encode = msgspec.json.Encoder().encode
# Long enough that a claim costs little each, short enough that the database
# has something to do while the next portion is selected.
_PORTION = 32
NextJobs = Callable[[], Sequence[HostJob]]


class _StoredPlacement(Placement, kw_only=True):
    """A placement as it is stored with its claim, for audits.

    :ivar amounts: resource class -> what the claim took
    """

    amounts: dict[str, int]


class ClaimSender:
    """Sends claims for what was selected.

    :param pipeline: what it claims is selected by this one
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        pipeline: HostPipeline,
        health: Health,
    ) -> None:
        self._snapshots = snapshots
        self._health = health
        self.use(pipeline)

    def use(self, pipeline: HostPipeline) -> None:
        """Claim what this pipeline selects, from now on."""
        settings = pipeline.settings
        self._policies = frozenset(
            host_filter.policy
            for host_filter in pipeline.filters
            if host_filter.policy
        )
        self._fallback = {
            name: settings.default_ratio(name) for name in STANDARD_CLASSES
        }

    def prepare(self, jobs: Sequence[HostJob]) -> claims.ClaimBatch | None:
        """Return the claims of the jobs that need one; None: none does."""
        needed = [
            _claim(job, assignment)
            for job in jobs
            if job.claim and job.selection is not None
            for assignment in job.selection.assignments
        ]
        if not needed:
            return None
        return claims.prepare(
            self._snapshots.store, needed, self._fallback, self._policies
        )

    def send(self, batch: claims.ClaimBatch, jobs: int) -> claims.PendingClaim:
        """Send a batch, to be claimed as a whole or not at all.

        :param jobs: how many jobs it is for
        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        start = time.perf_counter()

        def on_done(fault: Exception | None) -> None:
            self._health.time('claim', time.perf_counter() - start)
            if isinstance(fault, claims.ClaimLost):
                self._health.count('claims_lost', by=jobs)

        snapshots = self._snapshots
        store = snapshots.store
        with snapshots.raw_connection() as conn:
            if not batch.statements:
                with snapshots.writer() as writing:
                    return claims.send(store, conn, batch, on_done, writing)
            pending = claims.send(store, conn, batch, on_done)
            snapshots.pending = pending
        return pending

    def wait(self, pending: claims.PendingClaim) -> int:
        """Wait for a claim; return its revision.

        :raises ClaimLost: nothing is claimed
        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        with self._snapshots.raw_connection():
            return pending.wait()


def _claim(job: HostJob, assignment: Assignment) -> claims.Claim:
    request = job.request
    selected = assignment.placement.selected
    is_present = assignment.uuid in job.present
    return claims.Claim(
        assignment.uuid,
        assignment.host_id,
        selected.host,
        selected.node,
        assignment.amounts,
        assignment.ratios,
        request.project_id,
        request.request_id,
        document=_document(request),
        placement=_stored(assignment),
        known=is_present,
        group=request.instance_group,
        group_owner=_group_owner(job),
        move=is_present and job.move,
        key=job.key,
        redelivered=job.contested,
        releases_seen=job.releases_seen,
    )


def _stored(assignment: Assignment) -> str:
    """Return what is stored of a placement, as JSON."""
    placement = assignment.placement
    stored = _StoredPlacement(
        instance_uuid=placement.instance_uuid,
        selected=placement.selected,
        alternates=placement.alternates,
        amounts=dict(assignment.amounts),
    )
    return _encode(stored).decode()


def _group_owner(job: HostJob) -> str | None:
    """Return the project of the job's group; None: there is no such group."""
    uuid, table = job.request.instance_group, job.table
    group = table.groups.get(uuid) if uuid and table is not None else None
    return None if group is None else group.project_id or ''


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


class _Portion(NamedTuple):
    """Jobs that are claimed together.

    :ivar pending: None where none of them needs a claim
    :ivar sent_at: monotonic time at which the claim was sent
    """

    jobs: list[HostJob]
    pending: claims.PendingClaim | None
    sent_at: float


class SchedulingBatch:
    """Selects and claims once for some jobs, on one snapshot.

    Of two jobs that name the same instance the queue hands out the second
    one once the first has its result, and the snapshot its claim.

    :param next_jobs: gives batchable jobs that arrived meanwhile, if any
    :ivar lost: whether a claim was lost, so that others changed the hosts
    :ivar unfinished: jobs whose turn was over; nothing is assumed for them
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        selector: Selector,
        sender: ClaimSender,
        finisher: Finisher,
        health: Health,
        next_jobs: NextJobs,
    ) -> None:
        self._snapshots = snapshots
        self._selector = selector
        self._sender = sender
        self._finisher = finisher
        self._health = health
        self._next_jobs = next_jobs
        self._overlay = Overlay(snapshots.current().hosts)
        # When what the first jobs are judged by was known to be current.
        self._current_at = snapshots.current_at
        self._claimed = False
        self._again: list[HostJob] = []
        self.unfinished: list[HostJob] = []
        self._turn: time_slice.TimeSlice | None = None
        self._refused: list[tuple[HostJob, errors.SchedulerError]] = []
        self.lost = False

    def run(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Decide what can be decided; return the jobs to schedule again.

        :raises StoreUnavailable: some jobs have no result yet
        """
        self._turn = self._selector.batch_turn(jobs[0])
        try:
            self._run(jobs)
        finally:
            # What was selected and not claimed.
            self._overlay.forget()
        self._settle_refusals()
        return self._again

    def _run(self, jobs: Sequence[HostJob]) -> None:
        """Select each portion while the one before it is claimed."""
        under_way: _Portion | None = None
        try:
            for portion in self._portions(jobs):
                if self.lost:
                    # Another claim changed these hosts.
                    self._select_again(portion)
                    continue
                selected = self._select(portion)
                batch = self._sender.prepare(selected)
                before, under_way = under_way, None
                if before is not None and not self._is_claimed(before):
                    self._select_again(selected)
                    continue
                pending, sent_at = None, time.monotonic()
                if batch is not None:
                    count = sum(job.claim for job in selected)
                    pending = self._sender.send(batch, count)
                under_way = _Portion(selected, pending, sent_at)
                if before is not None:
                    self._finish(before)
        except BaseException:
            # The claim is already sent, so reply even if a later portion
            # failed.
            if under_way is not None and self._is_claimed(under_way):
                self._finish(under_way)
            raise
        if under_way is not None and self._is_claimed(under_way):
            self._finish(under_way)

    def _portions(
        self, jobs: Sequence[HostJob]
    ) -> Iterator[Sequence[HostJob]]:
        """Yield jobs in portions, then those that arrived meanwhile.

        Moves change two hosts at once and stay in one portion.
        """
        if len(jobs) < 2 * _PORTION or not all(job.batchable for job in jobs):
            yield jobs
            return
        start = 0
        while len(jobs) - start >= 2 * _PORTION:
            yield jobs[start : start + _PORTION]
            start += _PORTION
        yield jobs[start:]
        while not self.lost and not self._is_over():
            more = self._next_jobs()
            if not more:
                break
            yield more

    def _select_again(self, jobs: Sequence[HostJob]) -> None:
        for job in jobs:
            job.begin_anew()
        self._again += jobs

    def _select(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Select for jobs in turn; return those with something selected."""
        start = time.perf_counter()
        selected: list[HostJob] = []
        for job in jobs:
            if selected and self._is_over():
                self.unfinished.append(job)
                continue
            self._select_one(job)
            if job.state is State.SELECTED:
                selected.append(job)
            elif job.state is State.CLAIMED:
                self._finisher.advance([job])
        self._health.time('choose', time.perf_counter() - start)
        return selected

    def _is_over(self) -> bool:
        """Whether others than the first caller have their turn."""
        return self._turn is not None and self._turn.over()

    def _select_one(self, job: HostJob) -> None:
        """Select for a job, or refuse it, or have it go on later.

        :raises StoreUnavailable: the job has no result yet
        """
        try:
            self._selector.select(self._overlay, job)
        except errors.StoreUnavailable:
            # The fault is not the request's: it waits for the database.
            raise
        except errors.NoValidHost as error:
            table = self._overlay.table
            if not self._selector.ask_extenders_again(job, table):
                self._refused.append((job, errors.without_traceback(error)))
        except errors.SchedulerError as error:
            self._finisher.refuse(job, error)
        except time_slice.TimeSliceOver:
            self.unfinished.append(job)

    def _is_claimed(self, portion: _Portion) -> bool:
        """Wait for a portion's claim; return whether it was made.

        If not, its jobs are claimed one by one.
        """
        if portion.pending is None:
            return True
        try:
            self._sender.wait(portion.pending)
        except claims.ClaimLost:
            self.lost = True
            self._overlay.forget()
            self._claim_each(portion.jobs)
            return False
        return True

    def _finish(self, portion: _Portion) -> None:
        """Have claimed jobs go on, and let the snapshot keep their claims."""
        jobs, pending, sent_at = portion
        if pending is not None:
            _trace_claim(jobs, sent_at)
        # Before the snapshot is brought up to date: replies travel meanwhile.
        self._advance(jobs)
        if pending is None:
            return
        if any(job.move for job in jobs):
            # The overlay shows an instance that moves in one place only.
            self._overlay.forget()
            self._snapshots.refresh()
            return
        self._claimed = True
        self._overlay.commit(sum(_instances(job) for job in jobs if job.claim))
        self._snapshots.advance(pending.wait(), pending.lineage, sent_at)

    def _advance(self, jobs: Sequence[HostJob]) -> None:
        """Have jobs go on that are claimed, or need no claim."""
        for job in jobs:
            job.state = State.CLAIMED if job.claim else State.BOUND
        self._finisher.advance(jobs)

    def _claim_each(self, jobs: Sequence[HostJob]) -> None:
        """Claim job by job what could not be claimed together."""
        several = sum(job.claim for job in jobs) > 1
        for job in jobs:
            if not job.claim or (several and self._claim_alone(job)):
                self._advance([job])
                continue
            self._finisher.count_lost_claim(job)
            if not job.done():
                self._again.append(job)
        if several:
            self._snapshots.refresh()

    def _claim_alone(self, job: HostJob) -> bool:
        batch = self._sender.prepare([job])
        assert batch is not None
        try:
            self._sender.wait(self._sender.send(batch, 1))
        except claims.ClaimLost:
            return False
        return True

    def _settle_refusals(self) -> None:
        """Refuse jobs, or schedule them again where a host may fit by now.

        A refusal holds where nothing that was assumed before it came to
        nothing, and the snapshot was current after the job came. Where it was
        not, jobs that can be claimed for do not wait until it is.
        """
        current_at = max(self._current_at, self._snapshots.current_at)
        doubtful = []
        for job, error in self._refused:
            if not self.lost and job.queued_at <= current_at:
                self._finisher.refuse(job, error)
            else:
                doubtful.append((job, error))
        if not doubtful:
            return
        jobs = [job for job, _ in doubtful]
        if self._claimed and not self.lost:
            self.unfinished += jobs
        elif self.lost or self._snapshots.changed_by_others():
            self._again += jobs
        else:
            for job, error in doubtful:
                self._finisher.refuse(job, error)


def _trace_claim(jobs: Sequence[HostJob], sent_at: float) -> None:
    """Add a claim that was made for some jobs together to their traces."""
    for job in jobs:
        trace = job.message.trace
        if trace is not None:
            trace.stage(
                'claim',
                sent_at,
                time.monotonic(),
                requests=len(jobs),
                instances=_instances(job),
            )


def _instances(job: HostJob) -> int:
    """Return for how many instances hosts were selected."""
    return 0 if job.selection is None else len(job.selection.assignments)
