"""Select hosts for one job of a batch.

It belongs to the engine's thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import msgspec

from scheduler_service import time_slice
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.claiming import ScheduledJob
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.outcomes import Outcomes, Recalled
from scheduler_service.engine.ports import Claimer, EmbeddedClaimer, Extenders
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import HostPipeline, ScheduleResult
from scheduler_service.store import claims

_UNTRACED: AbstractContextManager[None] = nullcontext()
# Whether others wait than those of a lane of the queue.
OthersWait = Callable[[Hashable], bool]
# How long hosts are selected for one request while others wait, and for one
# batch, in seconds.
TURN_S = 0.015
_BATCH_TURN_S = 0.1


class Repeated(NamedTuple):
    """A job whose instances all hold a claim: the same placements again."""

    job: HostJob
    placements: list[Placement]


class Selector:
    """Selects hosts for jobs.

    :param others_wait: whether others wait than those of a lane

    :ivar extenders: asks extenders; None where there are none
    :ivar claimer: says which claims can be completed
    :ivar pipeline: what hosts are selected by
    :ivar selections: how often :meth:`select` was called
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        pipeline: HostPipeline,
        rng: random.Random,
        outcomes: Outcomes,
        others_wait: OthersWait,
    ) -> None:
        self.extenders: Extenders | None = None
        self.claimer: Claimer = EmbeddedClaimer()
        self.selections = 0
        self._snapshots = snapshots
        self.pipeline = pipeline
        self._rng = rng
        self._outcomes = outcomes
        self._others_wait = others_wait

    def batch_turn(self, first: HostJob) -> time_slice.TimeSlice:
        """Return the turn of a batch that begins now, with a job."""
        return time_slice.TimeSlice(
            _BATCH_TURN_S, lambda: self._others_wait(first.lane)
        )

    def select(
        self, overlay: Overlay, job: HostJob
    ) -> ScheduledJob | Repeated | Recalled | None:
        """Select for a job; what is selected for a claim stays assumed.

        What was selected when the turn is over is kept in ``job.placed``.

        :return: None where extenders have to be asked first
        :raises TimeSliceOver: others have their turn first
        :raises NoValidHost: no host passes
        :raises Forbidden: an instance or the group is another project's
        :raises SchedulerError: the request cannot be scheduled
        """
        self.selections += 1
        table, request = overlay.table, job.request
        if job.pipeline is not self.pipeline:
            job.forget_selection(self.pipeline)
        if job.claim:
            self.claimer.check(request)
        recalled = self._recall(job)
        if recalled is not None:
            return recalled
        present = self._present(table, job)
        before = self._claimed_before(present, job)
        if before:
            uuids = request.instance_uuids
            missing = [uuid for uuid in uuids if uuid not in before]
            if not missing:
                return Repeated(job, [before[uuid] for uuid in uuids])
            request = msgspec.structs.replace(
                request, instance_uuids=missing, num_instances=len(missing)
            )
        if job.move or job.excluded_hosts:
            request = _elsewhere(present, request, job)
        if self._submit(job, table):
            return None
        # A job that lost its claim selects among more hosts: those who won
        # it select the best, too.
        spread = 2**job.attempts
        result = self._select(overlay, request, job, spread)
        if not job.claim:
            overlay.forget_last(len(result.assignments))
        known = present.keys() - before.keys()
        return ScheduledJob(job, result, table, before, known)

    def _recall(self, job: HostJob) -> Recalled | None:
        """Return the outcome of a job's message, if it has one already."""
        if not self._outcomes.may_exist(job, self._snapshots.releases):
            return None
        with self._snapshots.autocommit_connection() as conn:
            return self._outcomes.recall(conn, job)

    def _present(
        self, table: HostTable, job: HostJob
    ) -> dict[str, PlacedInstance]:
        """Return the job's instances that are placed, if the caller may.

        Where the caller did not say whether they move, the store does.

        :raises Forbidden: an instance or the group is another project's
        """
        present = {
            uuid: placed
            for uuid in job.request.instance_uuids
            if (placed := table.instances.get(uuid)) is not None
        }
        if job.caller and (present or job.request.instance_group):
            job.caller.check_select(job.request, present, table)
        if job.moves_unsaid and present:
            with self._snapshots.autocommit_connection() as conn:
                job.move = claims.run_somewhere(conn, sorted(present))
        return present

    def _select(
        self, overlay: Overlay, request: Request, job: HostJob, spread: int
    ) -> ScheduleResult:
        """Select for the length of a turn, from where the last one ended."""
        turn = time_slice.TimeSlice(
            TURN_S, lambda: self._others_wait(job.lane)
        )
        placed, job.placed = job.placed, {}
        try:
            with time_slice.begin(turn), _traced(job, turn):
                return self.pipeline.select(
                    overlay,
                    request,
                    self._rng,
                    spread,
                    job.extender_scores,
                    placed,
                )
        except time_slice.TimeSliceOver:
            job.placed = placed
            raise

    def _claimed_before(
        self, present: Mapping[str, PlacedInstance], job: HostJob
    ) -> dict[str, Placement]:
        """Return the placements of instances that hold a claim already.

        :param present: the job's instances that the snapshot has
        """
        held = [
            uuid
            for uuid, placed in present.items()
            if (placed.bound_for if job.move else placed.claimed)
        ]
        if not held or not job.claim:
            return {}
        with self._snapshots.autocommit_connection() as conn:
            placements = claims.placements(conn, held, job.move)
        return msgspec.convert(placements, dict[str, Placement])

    def _submit(self, job: HostJob, table: HostTable) -> bool:
        """Submit a job to the extenders, if they have to be asked."""
        extenders = self.extenders
        if extenders is None or job.extender_scores is not None:
            return False
        if not extenders.applies_to(job.request):
            return False
        extenders.submit(job, table)
        return True

    def requery_extenders(self, job: HostJob, table: HostTable) -> bool:
        """Ask extenders once more where all hosts that they left are gone."""
        extenders = self.extenders
        scores = job.extender_scores
        if extenders is None or not scores or not all(scores):
            return False
        if job.extender_rounds > extenders.max_requeries:
            return False
        job.extender_scores = None
        return self._submit(job, table)


def _traced(
    job: HostJob, turn: time_slice.TimeSlice
) -> AbstractContextManager[None]:
    """Add the stages of a selection to the job's trace, if it has one."""
    trace = job.message.trace
    if trace is None:
        return _UNTRACED
    return trace.selection(
        turn, job.queued_at, job.attempts, job.request.num_instances
    )


def _elsewhere(
    present: Mapping[str, PlacedInstance], request: Request, job: HostJob
) -> Request:
    """Return the request without the hosts that it cannot be on.

    Those that its instances move away from, and those that an extender
    could not bind.
    """
    hosts = set(job.excluded_hosts)
    if job.move:
        hosts.update(placed.host for placed in present.values())
    ignored = sorted({*(request.ignore_hosts or ()), *hosts})
    return msgspec.structs.replace(request, ignore_hosts=ignored)
