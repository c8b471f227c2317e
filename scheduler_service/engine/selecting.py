"""Selects hosts for one job of a batch: QUEUED -> SELECTED.

It belongs to the engine's thread.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import msgspec

from scheduler_service import errors, time_slice
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.ports import Claimer, Completer, Extenders
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import HostPipeline, ScheduleResult

_UNTRACED: AbstractContextManager[None] = nullcontext()
# How long hosts are selected for one request while others wait, and for one
# batch, in seconds.
TURN_S = 0.015
_BATCH_TURN_S = 0.1


class Selector:
    """Selects hosts for jobs.

    :ivar extenders: asks extenders; None where there are none
    :ivar completer: says which claims can be completed; None: a claim is
        complete once it is in the store
    :ivar pipeline: what hosts are selected by
    :ivar selections: how often :meth:`select` was called
    """

    def __init__(
        self,
        claimer: Claimer,
        pipeline: HostPipeline,
        rng: random.Random,
        queue: RequestQueue,
    ) -> None:
        self.extenders: Extenders | None = None
        self.completer: Completer | None = None
        self.selections = 0
        self._claimer = claimer
        self.pipeline = pipeline
        self._rng = rng
        self._queue = queue

    def batch_turn(self, first: HostJob) -> time_slice.TimeSlice:
        """Return the turn of a batch that begins now, with a job."""
        return time_slice.TimeSlice(
            _BATCH_TURN_S, lambda: self._queue.others_wait(first.lane)
        )

    def select(self, overlay: Overlay, job: HostJob) -> None:
        """Select for a job; what is selected for a claim stays assumed.

        Its state says what it came to: DONE where its message has an outcome
        already, CLAIMED where its instances have their claims, and QUEUED
        where extenders are asked first. What was selected when the turn is
        over is kept in ``job.placed``.

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
            self._check_claimable(request)
        if self._recall(job):
            return
        present = self._present(table, job)
        held = self._claimed_before(present, job)
        if held:
            uuids = request.instance_uuids
            missing = [uuid for uuid in uuids if uuid not in held]
            if not missing:
                job.placements = [held[uuid] for uuid in uuids]
                job.held, job.state = held, State.CLAIMED
                return
            request = msgspec.structs.replace(
                request, instance_uuids=missing, num_instances=len(missing)
            )
        if job.move or job.excluded_hosts:
            request = _elsewhere(present, request, job)
        if self._ask_extenders(job, table):
            return
        # A job that lost its claim selects among more hosts: those who won
        # it select the best, too.
        spread = 2**job.attempts
        selection = self._select(overlay, request, job, spread)
        if not job.claim:
            overlay.forget_last(len(selection.assignments))
        job.table, job.held = table, held
        job.present = present.keys() - held.keys()
        job.select(selection)
        if job.claim and self.completer is not None:
            self.completer.plan(job)

    def _check_claimable(self, request: Request) -> None:
        """Check that claims for a request can be completed.

        :raises InvalidRequest: they cannot
        """
        if self.completer is not None:
            self.completer.check(request)
        elif request.resource_groups:
            suffix = request.resource_groups[0].suffix
            raise errors.InvalidRequest(
                f'resource_groups: group {suffix} can only be claimed in the '
                'placement service ([compute] use_placement)',
                at='resource_groups',
            )

    def _recall(self, job: HostJob) -> bool:
        """Take the outcome of a job's message; return whether it has one."""
        recalled = self._claimer.recall(job)
        if recalled is None:
            return False
        if recalled.held:
            # Whether they were completed and bound before is not known.
            job.placements = recalled.result.placements
            job.state = State.CLAIMED
        else:
            recalled.settle(job)
        return True

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
            job.move = self._claimer.run_somewhere(sorted(present))
        return present

    def _select(
        self, overlay: Overlay, request: Request, job: HostJob, spread: int
    ) -> ScheduleResult:
        """Select for the length of a turn, from where the last one ended."""
        turn = time_slice.TimeSlice(
            TURN_S, lambda: self._queue.others_wait(job.lane)
        )
        placed, job.placed = job.placed, {}
        try:
            with turn, _traced(job, turn):
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
        return self._claimer.find(held, job.move)

    def _ask_extenders(self, job: HostJob, table: HostTable) -> bool:
        """Have the extenders asked, if they have to be; return whether."""
        extenders = self.extenders
        if extenders is None or job.extender_scores is not None:
            return False
        if not extenders.applies_to(job.request):
            return False
        job.extender_rounds += 1
        extenders.ask(job, table)
        return True

    def ask_extenders_again(self, job: HostJob, table: HostTable) -> bool:
        """Have them asked about the present where all they passed is taken.

        :return: whether they are asked
        """
        extenders, scores = self.extenders, job.extender_scores
        if extenders is None or not scores or not all(scores):
            return False
        if job.extender_rounds > extenders.max_requeries:
            return False
        job.extender_scores = None
        return self._ask_extenders(job, table)


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
