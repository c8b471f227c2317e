"""Selects hosts for one job of a batch: QUEUED -> SELECTED.

It belongs to the engine's thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import msgspec
import numpy as np

from scheduler_service import errors, time_slice
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.ports import Completer, Extenders, Parts
from scheduler_service.model import Placement, Request, Selection
from scheduler_service.pipeline import (
    Assignment,
    HostPipeline,
    ScheduleResult,
)

# How long hosts are selected for one request while others wait, in seconds.
TURN_S = 0.015
# How often candidates for allocations are asked for.
_ROUNDS = 3


class Selector:
    """Selects hosts for jobs.

    :ivar extenders: asks extenders; None where there are none
    :ivar completer: says which claims can be completed; None: a claim is
        complete once it is in the store
    :ivar pipeline: what hosts are selected by
    :ivar selections: how often :meth:`select` was called
    """

    def __init__(self, parts: Parts, pipeline: HostPipeline) -> None:
        self.extenders: Extenders | None = None
        self.completer: Completer | None = None
        self.selections = 0
        self._claimer, self._queue = parts.claimer, parts.queue
        self._rng = parts.rng
        self.pipeline = pipeline

    def select(self, overlay: Overlay, job: HostJob) -> None:
        """Select for a job; what is selected for a claim stays assumed.

        Its state says what it came to: DONE where its message has an outcome
        already, CLAIMED where its instances have their claims, and QUEUED
        where extenders are asked first. What was selected when the turn is
        over is kept in its attempt.

        :raises TimeSliceOver: others have their turn first
        :raises NoValidHost: no host passes
        :raises Forbidden: an instance or the group is another project's
        :raises ServerGroupMismatch: an instance is stored in other groups
        :raises ServerGroupNotEnforced: no filter or weigher does
        :raises SchedulerError: the request cannot be scheduled
        """
        self.selections += 1
        table = overlay.table
        job.take_form(table.resources)
        request = job.request
        if job.attempt.pipeline not in (None, self.pipeline):
            # What another pipeline selected does not count.
            job.begin_anew(candidates=False, scores=False)
        job.attempt.pipeline = self.pipeline
        if self.completer is None and not request.is_rebuild:
            request.refuse_groups()
        recalled = self._claimer.recall(job)
        if recalled is not None:
            recalled.resume(job)
            return
        present = table.instances.among(request.instance_uuids)
        held: Mapping[str, Placement] = {}
        if present or request.instance_group or request.stored_groups:
            self._check_present(job, present, table)
            held = self._claimed_before(present, job)
        if held:
            uuids = request.instance_uuids
            missing = [uuid for uuid in uuids if uuid not in held]
            if not missing:
                job.attempt.placements = [held[uuid] for uuid in uuids]
                job.attempt.held, job.state = held, State.CLAIMED
                return
            request = request.having(
                instance_uuids=missing, num_instances=len(missing)
            )
        if job.move or job.excluded_hosts:
            request = _elsewhere(present, request, job)
        if self._find_candidates(job, request, table):
            return
        job.attempt.present = present.keys() - held.keys()
        if not job.moves_unsaid or not job.move or self.completer is not None:
            self._select_or_ask(overlay, request, job, held)
            return
        row, lent = self._lent(table, request, present)
        table.add_use(row, lent, -1)
        try:
            self._select_or_ask(overlay, request, job, held)
        finally:
            table.add_use(row, lent, 1)

    def _lent(
        self,
        table: HostTable,
        request: Request,
        present: Mapping[str, PlacedInstance],
    ) -> tuple[Rows, dict[str, int]]:
        """Return what a resize needs of what it has on its own host.

        The larger of both sizes counts there, as in the claim, and a smaller
        one always fits. Another service that has the allocations adds them up.

        :return: the row of the host, if any, and amounts not to be counted
            while hosts are selected
        """
        placed = present.get(request.placing or '')
        row = placed and table.row_of_node(placed.host, placed.node)
        if (
            request.num_instances > 1
            or placed is None
            or row is None
            or placed.host.lower() in request.ignored
        ):
            return np.array([], np.intp), {}
        held = self._claimer.held_of(table.ids.item(row), placed.uuid)
        lent = {}
        for name in (
            request.resources.keys() & held.keys() & table.resources.keys()
        ):
            amount, own = request.resources[name], held[name]
            lacks = amount - self.pipeline.room(table, row, name)
            lent[name] = min(own, amount)
            if amount <= own and lent[name] < lacks < np.inf:
                lent[name] = math.ceil(lacks)
        return np.array([row], np.intp), lent

    def _select_or_ask(
        self,
        overlay: Overlay,
        request: Request,
        job: HostJob,
        held: Mapping[str, Placement],
    ) -> None:
        """Select hosts, unless extenders are to be asked first."""
        if not self._ask_extenders(job, overlay.table):
            self._select(overlay, request, job, held)

    def _select(
        self,
        overlay: Overlay,
        request: Request,
        job: HostJob,
        held: Mapping[str, Placement],
    ) -> None:
        """Select hosts, with a candidate for each where any are needed."""
        attempt = job.attempt
        selection = self._select_hosts(overlay, request, job, attempt.placed)
        found = attempt.candidates
        while found is not None and not found.assign(selection.assignments):
            overlay.forget_last(len(selection.assignments))
            selection = self._select_hosts(overlay, request, job, {})
        if not job.claim:
            overlay.forget_last(len(selection.assignments))
        attempt.selection, job.state = selection, State.SELECTED
        attempt.table, attempt.held = overlay.table, held
        placements = [made.placement for made in selection.assignments]
        if job.with_pcpu is not None:
            for placement in placements:
                _state_amounts(placement, request.own_resources)
        if held:
            by_uuid = {made.instance_uuid: made for made in placements}
            by_uuid.update(held)
            placements = [by_uuid[uuid] for uuid in job.request.instance_uuids]
        attempt.placements = placements
        if job.claim and self.completer is not None:
            self.completer.plan(job)

    def _select_hosts(
        self,
        overlay: Overlay,
        request: Request,
        job: HostJob,
        placed: dict[str, Assignment],
    ) -> ScheduleResult:
        """Select for the length of a turn.

        :param placed: in earlier turns; those of this one are added
        """
        lane, start = job.message.lane, time.monotonic()
        time_slice.begin(TURN_S, lambda: self._queue.others_wait(lane))
        try:
            return self.pipeline.select(
                overlay,
                request,
                self._rng,
                # A job that lost its claim selects among more hosts: those
                # who won it select the best, too.
                2**job.attempts,
                job.attempt.bounds(),
                placed,
            )
        except time_slice.TimeSliceOver:
            job.attempt.placed = placed
            raise
        finally:
            filtered = time_slice.end()
            if job.message.trace is not None:
                job.message.trace.selection(
                    job.queued_at,
                    start,
                    filtered,
                    job.attempts,
                    request.num_instances,
                )

    def _check_present(
        self,
        job: HostJob,
        present: Mapping[str, PlacedInstance],
        table: HostTable,
    ) -> None:
        """Check that the caller may name instances or a group that exist.

        The store says which groups the instances are in and, where the caller
        did not, whether they move.
        """
        request = job.request
        request.stored_groups = table.groups_of(present)
        if job.caller:
            job.caller.check_select(request, present, table)
        for uuid, groups in request.stored_groups.items():
            if request.instance_group not in (None, '', *groups):
                raise errors.ServerGroupMismatch(
                    f'The request names server group {request.instance_group},'
                    f' but instance {uuid} is in {", ".join(groups)}',
                    instance=uuid,
                    named=request.instance_group,
                    server_groups=groups,
                )
        if not request.lenient and not request.is_rebuild:
            self.pipeline.group_policies.check(table, request)
        if job.moves_unsaid and present:
            job.move = self._claimer.run_somewhere(sorted(present))

    def _claimed_before(
        self, present: Mapping[str, PlacedInstance], job: HostJob
    ) -> dict[str, Placement]:
        """Return the placements of instances that hold a claim already."""
        held = [
            uuid
            for uuid, placed in present.items()
            if (placed.bound_for if job.move else placed.claimed)
        ]
        if not held or not job.claim:
            return {}
        return self._claimer.find(held, job.move)

    def _find_candidates(
        self, job: HostJob, request: Request, table: HostTable
    ) -> bool:
        """Have candidates found, if they have to be; return whether."""
        completer = self.completer
        if (
            completer is None
            or job.attempt.candidates is not None
            or request.is_rebuild
            or not completer.needs_candidates(request)
        ):
            return False
        job.attempt.candidate_rounds += 1
        job.attempt.candidate_hosts = table.ids
        completer.find_candidates(job, request, table, self.pipeline)
        return True

    def forget_answers(self, job: HostJob) -> None:
        """Have others asked again, about hosts that changed since.

        As often as they may be: then the job keeps their last answers.
        """
        attempt, extenders = job.attempt, self.extenders
        job.begin_anew(
            candidates=attempt.candidate_rounds >= _ROUNDS,
            scores=extenders is None
            or attempt.extender_rounds > extenders.max_requeries,
        )

    def check_refusal(
        self, job: HostJob, error: errors.SchedulerError, table: HostTable
    ) -> bool:
        """Have it checked whether others know better than the store.

        :return: whether it is checked; if not, the refusal stands
        """
        completer = self.completer
        if (
            completer is None
            or job.attempt.checked_at
            or not isinstance(error, errors.NoValidHost)
        ):
            return False
        self.forget_answers(job)
        return completer.check_refusal(job, error, table, self.pipeline)

    def forget_candidates(self, job: HostJob, table: HostTable) -> bool:
        """Have candidates found again where no host of them is left.

        :param table: by which none is
        :return: whether they are to be
        """
        candidates = job.attempt.candidates
        if (
            candidates is None
            or job.attempt.candidate_rounds >= _ROUNDS
            # Nothing was lost, and no host was added, since they were found.
            or (
                candidates.is_whole
                and not job.attempts
                and np.array_equal(job.attempt.candidate_hosts, table.ids)
            )
        ):
            return False
        job.begin_anew(candidates=False)
        return True

    def _ask_extenders(self, job: HostJob, table: HostTable) -> bool:
        """Have the extenders asked, if they have to be; return whether."""
        extenders = self.extenders
        if (
            extenders is None
            or job.attempt.extender_scores is not None
            or not extenders.applies_to(job.request)
        ):
            return False
        job.attempt.extender_rounds += 1
        extenders.ask(job, table)
        return True

    def ask_extenders_again(self, job: HostJob, table: HostTable) -> bool:
        """Have them asked about the present where all they passed is taken.

        :return: whether they are asked
        """
        extenders, scores = self.extenders, job.attempt.extender_scores
        if (
            extenders is None
            or not scores
            or not all(scores)
            or job.attempt.extender_rounds > extenders.max_requeries
        ):
            return False
        job.begin_anew(scores=False)
        return self._ask_extenders(job, table)


def _state_amounts(placement: Placement, amounts: Mapping[str, int]) -> None:
    """Have selections say what is claimed, where the request does not."""

    def stated(selected: Selection) -> Selection:
        if selected.allocation is not msgspec.UNSET:
            return selected
        allocation = {
            'allocations': {selected.uuid: {'resources': dict(amounts)}},
            'mappings': {'': [selected.uuid]},
        }
        return msgspec.structs.replace(selected, allocation=allocation)

    placement.selected = stated(placement.selected)
    placement.alternates = [stated(each) for each in placement.alternates]


def _elsewhere(
    present: Mapping[str, PlacedInstance], request: Request, job: HostJob
) -> Request:
    """Return the request without the hosts that it cannot be on.

    Those that its instances move away from, unless the caller names these,
    and those that refused it before.
    """
    hosts = dict(job.excluded_hosts)
    if job.move:
        for placed in present.values():
            if not job.moves_unsaid or placed.host.lower() in request.ignored:
                hosts[placed.host] = 'the instance moves away from it'
    ignored = sorted({*(request.ignore_hosts or ()), *hosts})
    made = request.having(ignore_hosts=ignored)
    made.why_ignored = {host.lower(): why for host, why in hosts.items()}
    return made
