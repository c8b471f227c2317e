"""Completes claims by allocations in the placement service.

The engine's thread hands jobs over and goes on. Threads of
:class:`PlacementClaimer` take as many waiting claims as fit into one call (see
``queue``), and give each job back to the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, MutableSet, Sequence

import msgspec

from scheduler_service import errors, worker
from scheduler_service.columns import HostTable
from scheduler_service.compute.placement import candidates, claims, records
from scheduler_service.compute.placement.candidates import (
    Candidates,
    Tree,
    with_tree,
)
from scheduler_service.compute.placement.claims import (
    AllocationRequest,
    AllocationResult,
)
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.compute.placement.journal import PlacementJournal
from scheduler_service.compute.placement.queue import (
    MOST_AT_ONCE,
    Call,
    ClaimTask,
    PlacementQueue,
)
from scheduler_service.compute.placement.refusal_checks import (
    RefusalChecks,
)
from scheduler_service.compute.placement.sharing import SharedProviders
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, is_late
from scheduler_service.engine.ports import (
    Stage,
    StageRecord,
    StageUndoer,
    Undone,
)
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Selection
from scheduler_service.store.claims import stage_records
from scheduler_service.store.connection import Store, in_chunks
from scheduler_service.store.rows import document

LOG = logging.getLogger(__name__)
_THREADS = 4
# The longest wait for the threads at the end, in seconds.
_STOP_S = 5.0
# Pause between tries while the database is unreachable, in seconds.
_AWAY_S = 0.5
_GOOD = (AllocationResult.MADE, AllocationResult.ALREADY_MADE)
_NO_CAPACITY = AllocationResult.NO_CAPACITY
# Further candidates of a host that are tried.
_NEXT_CANDIDATES = 2


class PlacementClaimer(Stage):
    """Threads that make allocations; the first ones start them.

    :param queue: lends jobs, and gets each of them back
    :param undoer: undoes allocations by their records
    :param on_misfit: called with a service host that has less room than the
        store says
    :param catch_up: as of ``RefusalChecks``
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
        catch_up: Callable[[Sequence[str], float], bool],
        shared: SharedProviders,
    ) -> None:
        self._on_misfit = on_misfit
        self._client = client
        self._undoer = undoer
        self._refusals = RefusalChecks(client, queue, catch_up)
        self._shared = shared
        self._store = store
        self._health = health
        self._engine = queue
        self._queue = PlacementQueue()
        client.under_way = self._queue.consumers
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

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

    def check_refusal(
        self, job: HostJob, refusal: errors.NoValidHost, table: HostTable
    ) -> bool:
        """Have it looked up whether the service knows better."""
        return self._refusals.check(job, refusal, table)

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Hand jobs over to the threads."""
        while len(self._threads) < _THREADS:
            number, on_end = len(self._threads), self._health.thread_ended
            thread = worker.new_thread(
                f'placement-{number}', self._run, on_end
            )
            self._threads.append(thread)
            thread.start()
        tasks = [_task(job) for job in jobs]
        self._engine.lend(jobs)
        self._queue.put(tasks)

    def stop(self) -> None:
        """End each thread after the call that it is making."""
        self._stopping.set()
        self._refusals.stop()
        self._queue.stop()
        deadline = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        journal = PlacementJournal(self._store)
        while True:
            call = self._queue.take(journal.flush_due())
            if call is None:
                continue
            try:
                if not call.tasks:
                    break
                recorded = [
                    task
                    for task in call.tasks
                    if self._is_intended(task, journal)
                ]
                if recorded:
                    self._make_recorded(recorded, call, journal)
            finally:
                self._queue.done(call)
        journal.close()

    def _make_recorded(
        self,
        recorded: Sequence[ClaimTask],
        call: Call,
        journal: PlacementJournal,
    ) -> None:
        """Make allocations whose intent is recorded; finish their tasks."""
        journal.refusals.clear()
        try:
            results = self._make(recorded, journal)
        except BaseException as fault:
            is_away = isinstance(fault, errors.PlacementUnavailable)
            if len(recorded) > 1 and not is_away:
                # What is wrong with one fails no other.
                for task in recorded:
                    self._make_recorded([task], call, journal)
                return
            journal.unanswered(_allocations(recorded))
            journal.flush()
            for task in recorded:
                self._fail(task, fault)
            return
        # The next call need not wait for the replies of this one.
        self._queue.done(call)
        # As they are now: others were made where the first had no room.
        good, bad = _parted(_allocations(recorded), results)
        journal.end(good, made=True)
        journal.end(bad, made=False)
        for task in recorded:
            try:
                self._finish_or_undo(task, results, journal)
            except BaseException as fault:
                self._fail(task, fault)

    def _is_intended(self, task: ClaimTask, journal: PlacementJournal) -> bool:
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
                self._intend(task, journal)
        except BaseException as fault:
            if task.is_recorded:
                journal.end(task.allocations, made=False)
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

    def _intend(self, task: ClaimTask, journal: PlacementJournal) -> None:
        """Record one task's allocations; wait while the database is away."""
        while True:
            try:
                if task.may_be_made:
                    _use_recorded(task, journal)
                journal.intend(task.allocations)
                return
            except errors.StoreUnavailable:
                if is_late(task.job.deadline) or self._stopping.wait(_AWAY_S):
                    raise

    def _make(
        self, tasks: Sequence[ClaimTask], journal: PlacementJournal
    ) -> dict[str, AllocationResult]:
        results: dict[str, AllocationResult] = {}
        fresh: list[AllocationRequest] = []
        for task in tasks:
            # A consumer that has allocations would fail the whole POST.
            if task.may_be_made or task.job.move:
                for allocation in task.allocations:
                    results |= self._claim([allocation], journal)
            else:
                fresh += task.allocations
        for part in in_chunks(fresh, MOST_AT_ONCE):
            self._health.observe('placement_size', len(part))
            results |= self._claim(part, journal)
        for task in tasks:
            for number, allocation in enumerate(task.allocations):
                if results[allocation.consumer] is _NO_CAPACITY:
                    results[allocation.consumer] = self._claim_next(
                        task, number, journal
                    )
        return results

    def _claim_next(
        self, task: ClaimTask, number: int, journal: PlacementJournal
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
            if allocation.consumer in journal.unsure:
                # The record stays until the result of its call is clear.
                return AllocationResult.LEFT
            allocation = allocation._replace(tree=tree)
            journal.replace(allocation)
            task.allocations[number] = allocation
            placement.selected = with_tree(placement.selected, tree)
            result = self._claim([allocation], journal)[allocation.consumer]
            if result is not _NO_CAPACITY:
                break
        return result

    def _claim(
        self,
        allocations: Sequence[AllocationRequest],
        journal: PlacementJournal,
    ) -> dict[str, AllocationResult]:
        results = claims.make(
            self._client, allocations, journal.unsure, journal.refusals
        )
        for allocation in allocations:
            if results[allocation.consumer] is AllocationResult.CONFLICT:
                results[allocation.consumer] = self._claim_again(
                    allocation, journal
                )
        return results

    def _claim_again(
        self, allocation: AllocationRequest, journal: PlacementJournal
    ) -> AllocationResult:
        """Undo allocations left by an earlier claim, and claim once more."""
        consumer = allocation.consumer
        try:
            ours = self._undoer.undo_left(self, consumer)
            made = claims.make(
                self._client, [allocation], journal.unsure, journal.refusals
            )
        except errors.PlacementUnavailable:
            journal.unsure.add(consumer)
            return AllocationResult.LEFT
        if ours and made[consumer] is AllocationResult.CONFLICT:
            return AllocationResult.LEFT
        return made[consumer]

    def _finish_or_undo(
        self,
        task: ClaimTask,
        results: dict[str, AllocationResult],
        journal: PlacementJournal,
    ) -> None:
        """Finish the job if all allocations were made; else undo them."""
        good, bad = _parted(task.allocations, results)
        if not bad:
            self._health.count('placement_claims', by=len(task.allocations))
            self._engine.give_back(task.job)
            return
        self._health.count('placement_claims_lost', by=len(task.allocations))
        self._undo(task, good, journal)
        task.job.attempt.failure = self._why(
            task, bad, results, journal.refusals
        )
        self._engine.give_back(task.job)

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
        self._engine.give_back(task.job)

    def _undo(
        self,
        task: ClaimTask,
        allocations: Sequence[AllocationRequest],
        journal: PlacementJournal,
    ) -> None:
        """Undo allocations of a task, before it is scheduled again.

        An allocation that cannot be undone now is undone from its record.
        """
        # The undoer reads the records from here on.
        journal.flush()
        if task.may_be_made or task.job.contested:
            # Another answer may have given the allocations to the caller.
            return
        made = list(filter(None, map(journal.recorded, allocations)))
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


def _use_recorded(task: ClaimTask, journal: PlacementJournal) -> None:
    """Claim what an earlier delivery recorded, and may have made."""
    for number, allocation in enumerate(task.allocations):
        record = journal.recorded(allocation)
        if record is None:
            continue
        recorded = record.content
        tree = Tree.of(recorded) if 'allocations' in recorded else None
        task.allocations[number] = allocation._replace(tree=tree)
        placement = task.job.attempt.placements[number]
        placement.selected = with_tree(placement.selected, tree)
