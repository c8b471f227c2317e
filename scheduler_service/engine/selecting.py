"""The stages *recall*, *select* and *answer*, of one job at a time.

They belong to the engine's thread. The host of a pod was chosen by its
cluster's scheduler, so pods have a stage *select* of their own.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from scheduler_service import errors, time_slice
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.jobs import HostJob, PodJob, State
from scheduler_service.engine.journal import Decided, PodPlaced
from scheduler_service.engine.ports import Parts, Stage
from scheduler_service.filters.capacity import used_of_aggregate
from scheduler_service.model import HostsAnswer, Placement, Request, Selection
from scheduler_service.pipeline import (
    Assignment,
    HostPipeline,
    ScheduleResult,
    explain,
)
from scheduler_service.pipeline.selection import explanation

# How long hosts are selected for one request while others wait, in seconds.
TURN_S = 0.015


class Recall(Stage):
    """Finds out what of a request is to be placed.

    Nothing is, where its message has an outcome already (the job is DONE) or
    its instances have their claims (it is CLAIMED).

    :ivar pipeline: what hosts are selected by
    :ivar allocates: whether a stage makes allocations: see ``Stage``
    :ivar overlay: of the batch
    """

    name = 'recall'

    def __init__(self, parts: Parts, pipeline: HostPipeline) -> None:
        self._claimer = parts.claimer
        self.pipeline = pipeline
        self.allocates = False
        self.overlay: Overlay

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Find out what is to be placed, what is held, and who may ask.

        :raises Forbidden: an instance or the group is another project's
        :raises ServerGroupMismatch: an instance is stored in other groups
        :raises ServerGroupNotEnforced: no filter or weigher does
        :raises InvalidRequest: it cannot be served as it is configured
        """
        for job in jobs:
            self._recall(job, table)

    def _recall(self, job: HostJob, table: HostTable) -> None:
        job.take_form(table.resources)
        request = job.request
        if job.attempt.pipeline not in (None, self.pipeline):
            # What another pipeline selected does not count.
            job.begin_anew(candidates=False, scores=False)
        attempt = job.attempt
        attempt.pipeline = self.pipeline
        if not (self.allocates or request.is_rebuild):
            request.refuse_groups()
        self.pipeline.check_devices(request)
        recalled = self._claimer.recall(job)
        if recalled is not None:
            job.begin_anew()
            recalled.resume(job)
            return
        present = table.instances.among(request.instance_uuids)
        held: Mapping[str, Placement] = {}
        if (
            present
            or request.instance_group
            or request.stored_groups
            or request.hinted_instances
        ):
            self._check_present(job, present, table)
            held = self._claimed_before(present, job)
        if held:
            uuids = request.instance_uuids
            missing = [uuid for uuid in uuids if uuid not in held]
            if not missing:
                attempt.placements = [held[uuid] for uuid in uuids]
                attempt.held, job.state = held, State.CLAIMED
                return
            request = request.having(
                instance_uuids=missing, num_instances=len(missing)
            )
        if job.move or job.excluded_hosts:
            request = _elsewhere(present, request, job)
        attempt.request, attempt.held = request, held
        attempt.present = present.keys() - held.keys()
        if (
            job.move
            and not self.allocates
            and (job.moves_unsaid or table.shared)
        ):
            self.overlay.lend(*self._lent(table, request, present))

    def _lent(
        self,
        table: HostTable,
        request: Request,
        present: Mapping[str, PlacedInstance],
    ) -> tuple[Rows, dict[str, int]]:
        """Return what a move needs of what the instance has already.

        A resize on its own host, and any move of what an aggregate gives
        there: the larger of both sizes counts, as in the claim, and a smaller
        one always fits.

        :return: the row of the host, if any, and amounts not to be counted
            while hosts are selected
        """
        placed = present.get(request.placing or '')
        row = placed and table.row_of_node(placed.host, placed.node)
        if request.num_instances > 1 or placed is None or row is None:
            return np.array([], np.intp), {}
        names = request.resources.keys() & table.resources.keys()
        shared = table.providers(row, names)
        if placed.host.lower() in request.ignored:
            names = shared.keys() & names
            if not names:
                return np.array([], np.intp), {}
        held = self._claimer.held_of(
            [table.ids.item(row), *shared.values()], placed.uuid
        )
        lent = {}
        for name in names & held.keys():
            amount, own = request.resources[name], held[name]
            lacks = amount - self.pipeline.room(table, row, name)
            lent[name] = min(own, amount)
            if amount <= own and lent[name] < lacks < np.inf:
                lent[name] = math.ceil(lacks)
        return np.array([row], np.intp), lent

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


class Select(Stage):
    """Selects hosts for what is to be placed.

    :ivar overlay: of the batch; what is selected for a claim stays assumed
    :ivar selections: how often it ran
    """

    name = 'select'

    def __init__(self, parts: Parts) -> None:
        self.selections = 0
        self.overlay: Overlay
        self._queue, self._rng = parts.queue, parts.rng
        self._journal = parts.journal

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Select hosts, with a candidate for each where any are needed.

        What was placed when the turn is over is kept in the attempt.

        :raises TimeSliceOver: others have their turn first
        :raises NoValidHost: no host passes
        :raises SchedulerError: the request cannot be scheduled
        """
        self.selections += 1
        overlay = self.overlay
        for job in jobs:
            attempt, request = job.attempt, job.attempt.request
            assert request is not None
            found, placed = attempt.candidates, attempt.placed
            # They are kept: another object could get the id of one.
            before = [*placed.values()]
            earlier = {*map(id, before)}
            try:
                selection = self._select_hosts(job, request, placed)
                while found is not None and not found.assign(
                    selection.assignments
                ):
                    overlay.forget_last(len(selection.assignments))
                    placed = {}
                    selection = self._select_hosts(job, request, placed)
            except errors.SchedulerError as error:
                # The attempt may yet be resumed, which changes its places.
                copies = [*map(copy.copy, placed.values())]
                kept = sum(id(made) in earlier for made in placed.values())
                self._keep(job, copies, kept, error.name, {})
                raise
            made, kept = selection.assignments, 0
            if earlier:
                made = [*placed.values()]
                kept = sum(id(each) in earlier for each in made)
            self._keep(job, made, kept, '', selection.reasons)
            attempt.selection, job.state = selection, State.SELECTED
            attempt.table = overlay.table
            placements = [made.placement for made in selection.assignments]
            if job.with_pcpu is not None:
                for placement in placements:
                    _state_amounts(placement, request.own_resources)
            if attempt.held:
                by_uuid = {made.instance_uuid: made for made in placements}
                by_uuid.update(attempt.held)
                placements = [
                    by_uuid[uuid] for uuid in job.request.instance_uuids
                ]
            attempt.placements = placements

    def _keep(
        self,
        job: HostJob,
        placed: Sequence[Assignment],
        earlier: int,
        error: str,
        reasons: Mapping[str, Any],
    ) -> None:
        """Record a decision, which stays assumed; forget that of a dry run.

        :param placed: in the order in which they were placed
        :param earlier: how many of them earlier turns had placed
        :param error: its name; then nothing is assumed
        """
        if not (job.claim or error):
            self.overlay.forget_last(len(placed))
        if not (job.claim and self._journal.keeps):
            return
        request = job.attempt.request
        assert request is not None
        job.decided = Decided(
            request,
            placed,
            earlier,
            self.overlay.lent,
            job.attempt.bounds(),
            job.attempts,
            error,
            reasons,
        )
        self._journal.put(job.decided)

    def _select_hosts(
        self, job: HostJob, request: Request, placed: dict[str, Assignment]
    ) -> ScheduleResult:
        """Select for the length of a turn.

        :param placed: in earlier turns; those of this one are added
        """
        attempt, pipeline = job.attempt, job.attempt.pipeline
        assert pipeline is not None
        lane, start = job.message.lane, time.monotonic()
        time_slice.begin(TURN_S, lambda: self._queue.others_wait(lane))
        try:
            return pipeline.select(
                self.overlay,
                request,
                self._rng,
                # A job that lost its claim selects among more hosts: those
                # who won it select the best, too.
                2**job.attempts,
                attempt.bounds(),
                placed,
            )
        except time_slice.TimeSliceOver:
            attempt.placed = placed
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


class PlacePod(Stage):
    """Puts pods on their hosts, unless they are claimed there already.

    :ivar overlay: of the batch; what is placed for a claim stays assumed
    """

    name = 'select'
    kinds = ('pod',)

    def __init__(self, parts: Parts) -> None:
        self._claimer, self._journal = parts.claimer, parts.journal
        self.overlay: Overlay

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Place pods; those that another try has claimed are CLAIMED.

        :raises Conflict: a pod is claimed on another host, or has the uuid of
            an instance
        :raises NoValidHost: it does not fit, or there is no such host
        """
        for job in jobs:
            assert isinstance(job, PodJob)
            if self._recall(job):
                job.state = State.CLAIMED
                continue
            made = _placed(job, self.overlay.table)
            placed = PodPlaced(made.uuid, made.row, made.amounts)
            self._journal.apply(placed, self.overlay)
            attempt = job.attempt
            attempt.selection = ScheduleResult([made], {})
            attempt.table, job.state = table, State.SELECTED
            attempt.placements = [made.placement]

    def _recall(self, job: PodJob) -> bool:
        """Find the claim that a pod has, once another one is refused."""
        self._claimer.recall(job)
        attempt = job.attempt
        attempt.request = job.request
        if not job.attempts:
            return False
        held = self._claimer.find(job.request.instance_uuids, False, job.kind)
        for placement in held.values():
            selected = placement.selected
            if (selected.host, selected.node) != (job.host, job.node):
                raise errors.Conflict(
                    f'The pod is claimed on {selected.node} already'
                )
            attempt.placements, attempt.held = [placement], held
        return bool(held)


def _placed(job: PodJob, table: HostTable) -> Assignment:
    """Return a pod's place on its host, which it may not overcommit."""
    host, node, amounts = job.host, job.node, job.request.resources
    row = table.row_of_node(host, node)
    if row is None:
        raise errors.NoValidHost(f'{node} is not kept as a host')
    for name, amount in amounts.items():
        columns, size, free = table.resources.get(name), 0, 0
        if columns is not None:
            size = int(columns.total[row] - columns.reserved[row])
            free = size - int(columns.used[row])
        if amount > free:
            left = used_of_aggregate(table, row, name, size, free)
            left = left or f'{max(0, free)} free'
            raise errors.NoValidHost(
                f'{node}: free_resources: {amount} {name} requested, {left}'
            )
    uid = job.request.instance_uuids[0]
    selected = Selection(
        host=host, node=node, uuid=table.coded['uuid'].at(row)
    )
    return Assignment(
        uuid=uid,
        row=row,
        host_id=table.ids.item(row),
        amounts=amounts,
        ratios=dict.fromkeys(amounts, 1.0),
        placement=Placement(instance_uuid=uid, selected=selected),
        placed=PlacedInstance(uid, host, node),
    )


class Answer(Stage):
    """Answers jobs, and refuses them.

    :ivar retries: how often a job that lost its claim is scheduled again
    """

    name = 'answer'

    def __init__(self, parts: Parts, retries: int) -> None:
        self._record, self._health = parts.record, parts.health
        self.retries = retries

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Give jobs their placements; record why, as the answers travel.

        Where a stage after the claim took its time, another copy of the
        message may have given the claims up: then the answer has to be
        recorded before its caller gets it, which only one of the two can do.
        """
        self._health.count('requests', 'chosen', by=len(jobs))
        for job in jobs:
            request, attempt = job.request, job.attempt
            selection = attempt.selection
            group = request.instance_group
            if group and group not in table.groups:
                # It is without a policy that anybody could keep.
                self._health.count('requests_with_unknown_group')
            answer = HostsAnswer(
                request_id=str(request.request_id),
                placements=list(attempt.placements),
                explanation=explanation(selection.reasons)
                if job.explain and selection is not None
                else None,
            )
            # What other requests claimed is not recorded with this claim.
            if attempt.held or (attempt.waited and job.contested):
                job.finish_unrecorded(answer)
            else:
                job.finish(answer)
        for job in jobs:
            attempt = job.attempt
            if job.recorded and attempt.selection is not None:
                why = {
                    'placements': attempt.placements,
                    'explanation': attempt.selection.reasons,
                }
                self._record(job, 'chosen', why)

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Give a job an error, count it, and record why.

        Unless it can have VCPU for PCPU: then it is QUEUED for that.
        """
        if not job.fall_back(error):
            self._refuse(job, job.refusal or error)

    def _refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        job.fail(error)
        self._health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self._health.count('filter_rejections', str(cause['filter']))
        decisive = explain.decisive_filter(error.facts)
        self._health.count('refusals', decisive, error.name)
        if job.recorded:
            self._record(job, error.name, {'error': error.to_dict()})

    def count_lost_claim(
        self,
        job: HostJob,
        why: str = '',
        last: errors.SchedulerError | None = None,
    ) -> None:
        """Count a lost claim; refuse a job that lost too often, in any form.

        :param why: what the store says; empty: another request was faster
        :param last: why a stage after the claim could not do its part
        """
        job.begin_anew()
        job.attempts += 1
        if job.attempts <= self.retries:
            return
        facts = {
            'request_id': job.request.request_id,
            'attempts': job.attempts,
            'excluded_hosts': job.excluded_hosts,
        }
        if why and job.request.forced:
            # No filter looked at the host before.
            text = f'No valid host was found. {why}'.rstrip('.')
            self._refuse(job, errors.NoValidHost(text, **facts))
            return
        why = why if last is None else f'The last one: {last}'
        lost = 'Every attempt lost its claim'
        lost += '' if why else ' to another request'
        text = f'{lost} ({self.retries} retries). {why}'.rstrip(' .')
        self._refuse(job, errors.MaxRetriesExceeded(text, **facts))
