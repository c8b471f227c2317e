"""Completes claims by allocations in the placement service.

The engine's thread hands jobs over and goes on. Threads of
:class:`PlacementClaimer` take as many waiting claims as fit into one call (see
``queue``), and give each job back to the engine. The intent of a first claim
is recorded with the claim, any other before the call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableSet, Sequence
from functools import partial

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.compute.placement import candidates, claims, records
from scheduler_service.compute.placement.candidates import (
    Candidates,
    SharedProviders,
    Tree,
    with_tree,
)
from scheduler_service.compute.placement.claims import (
    MOST_AT_ONCE,
    AllocationRequest,
    AllocationResult,
    Call,
    ClaimTask,
    PlacementQueue,
)
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.messages import is_late
from scheduler_service.engine.ports import Intent, StageRecord, Undone
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Selection
from scheduler_service.stages import WaitingStage
from scheduler_service.store.claims import stage_records
from scheduler_service.store.connection import Store, in_chunks
from scheduler_service.store.rows import document
from scheduler_service.store.workers.stage_undoer import StageUndoer

LOG = logging.getLogger(__name__)
_THREADS = 4
_GOOD = (AllocationResult.MADE, AllocationResult.ALREADY_MADE)
_NO_CAPACITY = AllocationResult.NO_CAPACITY
# Further candidates of a host that are tried.
_NEXT_CANDIDATES = 2


class PlacementClaimer(WaitingStage):
    """Threads that make allocations.

    :param undoer: keeps their records, and undoes them by these
    :param on_misfit: called with a service host that has less room than the
        store says
    """

    name = records.STAGE
    allocates = is_recorded = True

    def __init__(
        self,
        client: PlacementClient,
        store: Store,
        health: Health,
        queue: RequestQueue,
        undoer: StageUndoer,
        on_misfit: Callable[[str], None],
        shared: SharedProviders,
    ) -> None:
        super().__init__('placement', _THREADS, queue)
        self._on_misfit = on_misfit
        self._client = client
        self._undoer = undoer
        self._shared = shared
        self._store = store
        self._health = health
        self._waiting = PlacementQueue()
        client.under_way = self._waiting.consumers

    def prepare(self, job: HostJob) -> None:
        """Work out the allocations of a job that is selected.

        Those that are recorded with the claim are the first of their
        instances, as a rule; all others are recorded by the threads, which
        wait until an earlier claim is undone.
        """
        resources = job.request.own_resources

        def shared(selected: Selection) -> Selection:
            """Add allocations from sharing providers."""
            tree = self._shared.tree(selected.uuid, resources)
            return selected if tree is None else with_tree(selected, tree)

        attempt = job.attempt
        if not candidates.is_needed(job.request):
            for placement in attempt.placements:
                placement.selected = shared(placement.selected)
                placement.alternates = list(map(shared, placement.alternates))
        if job.is_first_claim:
            attempt.records[self.name] = {
                allocation.consumer: document(allocation.record)
                for allocation in _allocations_of(job)
            }

    def undo_all(
        self, records: Sequence[StageRecord], unsure: MutableSet[str]
    ) -> dict[str, Undone | Exception]:
        """Undo allocations by their records."""
        return claims.undo_all(self._client, records, unsure)

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Hand jobs over to the threads."""
        tasks = [_task(job) for job in jobs]
        self._take_away(jobs)
        self._waiting.put(tasks)
        for _ in tasks:
            self._threads.submit(self._make_next)

    def stop(self) -> None:
        """End each thread after the call that it is making."""
        self._waiting.stop()
        super().stop()

    def _make_next(self) -> None:
        """Make the next call, unless others took all that waited."""
        call = self._waiting.take()
        if call is None:
            return
        try:
            recorded = [task for task in call.tasks if self._is_intended(task)]
            if recorded:
                self._make_recorded(recorded, call)
        finally:
            self._waiting.done(call)

    def _make_recorded(
        self, recorded: Sequence[ClaimTask], call: Call
    ) -> None:
        """Make allocations whose intent is recorded; finish their tasks."""
        try:
            results = self._make(recorded, call)
        except BaseException as fault:
            is_away = isinstance(fault, errors.PlacementUnavailable)
            if len(recorded) > 1 and not is_away:
                # What is wrong with one fails no other.
                for task in recorded:
                    self._make_recorded([task], call)
                return
            unanswered = _intents(_allocations(recorded))
            self._undoer.ended(self, unanswered, False, sure=False)
            self._undoer.record_ends()
            for task in recorded:
                self._fail(task, fault)
            return
        # The next call need not wait for the replies of this one.
        self._waiting.done(call)
        # As they are now: others were made where the first had no room.
        good, bad = _parted(_allocations(recorded), results)
        self._end(good, True, call)
        self._end(bad, False, call)
        for task in recorded:
            try:
                self._finish_or_undo(task, results, call)
            except BaseException as fault:
                self._fail(task, fault)

    def _end(
        self, allocations: Sequence[AllocationRequest], made: bool, call: Call
    ) -> None:
        """Note that a call ended for allocations; recorded soon."""
        for sure in (False, True):
            some = [
                each
                for each in allocations
                if (each.consumer in call.unsure) is not sure
            ]
            self._undoer.ended(self, _intents(some), made, sure)

    def _is_intended(self, task: ClaimTask) -> bool:
        """Record the allocations that a task intends, unless that was done.

        :return: false: the task failed, or nobody waits for it any more
        """
        try:
            if is_late(task.job.deadline):
                raise errors.TooLate()
            self._check_traits(task)
            # Whether the record still says when the call may be under way.
            age = time.monotonic() - task.since
            if not task.is_recorded or age >= stage_records.CALL_ENDS_S:
                self._intend(task)
        except BaseException as fault:
            if task.is_recorded:
                self._undoer.ended(self, _intents(task.allocations), False)
            self._fail(task, fault)
            return False
        return True

    def _check_traits(self, task: ClaimTask) -> None:
        """Look whether hosts still have the traits that a task requires.

        Allocations do not depend on traits, which others may have changed
        since the store read them. Candidates were just asked for with them.

        :raises NoValidHost: a host has not, or has a forbidden one
        """
        request = task.job.request
        required, forbidden = request.required_traits, request.forbidden_traits
        if (
            not (required or forbidden)
            or task.may_be_made
            or candidates.is_needed(request)
        ):
            return
        for provider in {each.provider for each in task.allocations}:
            have = self._client.traits(provider)
            wrong = [f'lacks {name}' for name in sorted(required - have)]
            wrong += [f'has {name}' for name in sorted(forbidden & have)]
            if wrong:
                host = task.hosts[provider]
                why = f'the placement service says that it {wrong[0]}'
                LOG.info('Host %s: %s', host, why)
                task.job.excluded_hosts[host] = why
                self._on_misfit(host)
                raise errors.NoValidHost(f'{host}: {why}')

    def _intend(self, task: ClaimTask) -> None:
        """Record that allocations are to be made, or may be there already.

        :raises PlacementUnavailable: undoing an earlier claim takes too long
        """
        intents, deadline = partial(self._intents, task), task.job.deadline
        try:
            self._undoer.intend(self, intents, deadline, replace=False)
        except errors.StageFailed as fault:
            raise errors.PlacementUnavailable(str(fault)) from fault

    def _intents(self, task: ClaimTask) -> list[Intent]:
        """Return what a task intends.

        That is what an earlier delivery recorded, and may have made.
        """
        for number, allocation in enumerate(task.allocations):
            record = self._recorded(allocation) if task.may_be_made else None
            if record is None:
                continue
            recorded = record.content
            tree = Tree.of(recorded) if 'allocations' in recorded else None
            task.allocations[number] = allocation._replace(tree=tree)
            placement = task.job.attempt.placements[number]
            placement.selected = with_tree(placement.selected, tree)
        return _intents(task.allocations)

    def _recorded(self, allocation: AllocationRequest) -> StageRecord | None:
        with self._store.reading() as conn:
            return stage_records.recorded(
                conn, self.name, allocation.consumer, allocation.provider
            )

    def _make(
        self, tasks: Sequence[ClaimTask], call: Call
    ) -> dict[str, AllocationResult]:
        results: dict[str, AllocationResult] = {}
        fresh: list[AllocationRequest] = []
        for task in tasks:
            # A consumer that has allocations would fail the whole POST.
            if task.may_be_made or task.job.move:
                for allocation in task.allocations:
                    results |= self._claim([allocation], call)
            else:
                fresh += task.allocations
        for part in in_chunks(fresh, MOST_AT_ONCE):
            self._health.observe('placement_size', len(part))
            results |= self._claim(part, call)
        for task in tasks:
            for number, allocation in enumerate(task.allocations):
                if results[allocation.consumer] is _NO_CAPACITY:
                    results[allocation.consumer] = self._claim_next(
                        task, number, call
                    )
        return results

    def _claim_next(
        self, task: ClaimTask, number: int, call: Call
    ) -> AllocationResult:
        """Claim the next candidates of a host whose first has no room."""
        allocation, placement = (
            task.allocations[number],
            task.job.attempt.placements[number],
        )
        result, found = _NO_CAPACITY, task.job.attempt.candidates
        for _ in range(_NEXT_CANDIDATES):
            if not isinstance(found, Candidates) or allocation.tree is None:
                break
            tree = found.drop(allocation.provider, allocation.tree)
            if tree is None:
                break
            if allocation.consumer in call.unsure:
                # The record stays until the result of its call is clear.
                return AllocationResult.LEFT
            allocation = allocation._replace(tree=tree)
            self._replace(allocation)
            task.allocations[number] = allocation
            placement.selected = with_tree(placement.selected, tree)
            result = self._claim([allocation], call)[allocation.consumer]
            if result is not _NO_CAPACITY:
                break
        return result

    def _replace(self, allocation: AllocationRequest) -> None:
        """Record other allocations for a claim, of which none were made."""
        self._store.write(
            lambda writer: records.replace(
                writer.conn,
                allocation.consumer,
                allocation.provider,
                allocation.record,
            )
        )

    def _claim(
        self, allocations: Sequence[AllocationRequest], call: Call
    ) -> dict[str, AllocationResult]:
        results = claims.make(
            self._client, allocations, call.unsure, call.refusals
        )
        for allocation in allocations:
            if results[allocation.consumer] is AllocationResult.CONFLICT:
                results[allocation.consumer] = self._claim_again(
                    allocation, call
                )
        return results

    def _claim_again(
        self, allocation: AllocationRequest, call: Call
    ) -> AllocationResult:
        """Undo allocations left by an earlier claim, and claim once more."""
        consumer = allocation.consumer
        try:
            ours = self._undoer.undo_left(self, consumer)
            made = claims.make(
                self._client, [allocation], call.unsure, call.refusals
            )
        except errors.PlacementUnavailable:
            call.unsure.add(consumer)
            return AllocationResult.LEFT
        if ours and made[consumer] is AllocationResult.CONFLICT:
            return AllocationResult.LEFT
        return made[consumer]

    def _finish_or_undo(
        self,
        task: ClaimTask,
        results: dict[str, AllocationResult],
        call: Call,
    ) -> None:
        """Finish the job if all allocations were made; else undo them."""
        good, bad = _parted(task.allocations, results)
        if not bad:
            self._health.count('placement_claims', by=len(task.allocations))
            self._give_back(task.job)
            return
        self._health.count('placement_claims_lost', by=len(task.allocations))
        self._undo(task, good)
        task.job.attempt.failure = self._why(task, bad, results, call.refusals)
        self._give_back(task.job)

    def _why(
        self,
        task: ClaimTask,
        bad: Sequence[AllocationRequest],
        results: Mapping[str, AllocationResult],
        refusals: Mapping[str, str],
    ) -> errors.SchedulerError:
        worst = bad[0].consumer
        if results[worst] is AllocationResult.LEFT:
            return errors.PlacementUnavailable(
                f'Earlier allocations of instance {worst} could not be undone '
                'in the placement service yet',
                instance=worst,
            )
        if results[worst] is AllocationResult.CONTENDED:
            host = task.hosts[bad[0].provider]
            return errors.Conflict(
                f'Other clients changed what instance {worst} or host {host} '
                'has in the placement service, each time that it was to be '
                f'claimed there: {refusals[worst]}',
                instance=worst,
            )
        if results[worst] is AllocationResult.CONFLICT:
            return errors.Conflict(
                f'Instance {worst} has other allocations in the placement '
                'service',
                instance=worst,
            )
        reasons = {}
        for allocation in bad:
            consumer, host = (
                allocation.consumer,
                task.hosts[allocation.provider],
            )
            why = f'the placement service refused it: {refusals[consumer]}'
            LOG.info('Instance %s on host %s: %s', consumer, host, why)
            reasons[host] = why
            if results[consumer] is _NO_CAPACITY:
                task.job.excluded_hosts[host] = why
            self._on_misfit(host)
        return errors.NoValidHost(
            '; '.join(f'{host}: {why}' for host, why in reasons.items())
        )

    def _fail(self, task: ClaimTask, fault: BaseException) -> None:
        """Give up a job after a fault.

        Allocations that may have been made are undone from their records,
        once the placement service answers.
        """
        if not isinstance(fault, errors.SchedulerError):
            LOG.error('Claiming in placement failed', exc_info=fault)
        self._health.count('placement_failures')
        task.job.attempt.failure = errors.as_scheduler_error(fault)
        self._give_back(task.job)

    def _undo(
        self, task: ClaimTask, allocations: Sequence[AllocationRequest]
    ) -> None:
        """Undo allocations of a task, before it is scheduled again.

        An allocation that cannot be undone now is undone from its record.
        """
        # The undoer reads the records from here on.
        self._undoer.record_ends()
        if task.may_be_made or task.job.contested:
            # Another answer may have given the allocations to the caller.
            return
        made = list(filter(None, map(self._recorded, allocations)))
        results = self._undoer.undo(self, made, held=True)
        for fault in results.values():
            if isinstance(fault, Exception):
                LOG.info('Not undone yet: %s: %s', task.hosts, fault)


def _allocations(tasks: Sequence[ClaimTask]) -> list[AllocationRequest]:
    return [allocation for task in tasks for allocation in task.allocations]


def _parted(
    allocations: Sequence[AllocationRequest],
    results: Mapping[str, AllocationResult],
) -> tuple[list[AllocationRequest], list[AllocationRequest]]:
    """Return the allocations that are made, and the others."""
    good = [each for each in allocations if results[each.consumer] in _GOOD]
    return good, [each for each in allocations if each not in good]


def _task(job: HostJob) -> ClaimTask:
    allocations = _allocations_of(job)
    hosts = {
        uuid: placement.selected.host
        for placement, allocation in zip(
            job.attempt.placements, allocations, strict=True
        )
        for uuid in (
            allocation.provider,
            *allocation.allocation_tree.allocations,
        )
    }
    may_be_made = job.attempt.is_repeated or job.contested
    is_recorded = records.STAGE in job.attempt.records and not may_be_made
    return ClaimTask(job, allocations, hosts, may_be_made, is_recorded)


def _allocations_of(job: HostJob) -> list[AllocationRequest]:
    """Return what the instances of a job are to have, on their own hosts."""
    request = job.request
    user = request.user_id
    if user is None and job.caller is not None:
        user = job.caller.credentials.get('user_id')
    return [
        AllocationRequest(
            placement.instance_uuid,
            placement.selected.uuid,
            request.own_resources,
            request.project_id,
            user,
            job.move,
            None
            if placement.selected.allocation is msgspec.UNSET
            else Tree.of(placement.selected.allocation),
        )
        for placement in job.attempt.placements
    ]


def _intents(allocations: Sequence[AllocationRequest]) -> list[Intent]:
    return [
        (each.consumer, each.provider, document(each.record))
        for each in allocations
    ]
