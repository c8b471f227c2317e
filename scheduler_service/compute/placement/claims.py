"""Makes allocations for claims, many in one call, and undoes them.

The functions are stateless: any thread may call them. Several consumers go in
one POST, which the service does for all or for none. Where the service
refuses, the batch is halved until the consumers that do not fit are alone;
where a provider was changed at the same time, each goes in a PUT of its own.
Where it does not answer, they raise PlacementUnavailable: allocations may
then be made, or still be there.

Claims wait for a call in a queue. The engine's thread puts tasks; threads of
the claimer take the tasks of one call at a time. No two calls write to the
same provider at once, since they would fail each other. One call for many
consumers costs the service less than half of one call for each, but keeps
only one of its workers busy. So a call begins beside others where it has some
consumers and few calls are under way, where it is full, or where the others
take long. A condition guards all state.
"""

from __future__ import annotations

import enum
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, MutableMapping, MutableSet, Sequence
from concurrent import futures
from functools import partial
from typing import Any, NamedTuple

import msgspec

from scheduler_service.compute.placement import records as placement_records
from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.compute.placement.client import (
    PLAIN,
    PlacementClient,
)
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.ports import StageRecord, Undone

# What the service itself uses for consumers without a project or a user.
UNKNOWN = '00000000-0000-0000-0000-000000000000'
_TRIES = 5
# Tries to undo one consumer before the next one's turn, and the first pause
# between any tries, in seconds, which doubles.
_UNDO_TRIES = 3
_PAUSE_S = 0.1
# So many consumers are read at a time.
_READERS = 4
_GENERATION = 'consumer generation conflict'
# How many consumers go in one call.
MOST_AT_ONCE = 16
# A call begins beside others once _MIN_BATCH consumers wait, while fewer than
# _CALLS calls are under way: 16 callers had 97 claims a second with these, 80
# with one call at a time (``benchmarks.nova``; placement with two workers on
# two cores).
_MIN_BATCH = 5
_CALLS = 3
# A task that has waited for so long waits for no call that is under way, in
# seconds.
_MAX_WAIT_S = 0.25


class AllocationRequest(NamedTuple):
    """Allocations that a consumer is to have.

    :ivar provider: uuid of the host's own provider
    :ivar resources: resource class -> amount, of that provider
    :ivar keep_existing: whether the consumer keeps allocations that it has
    :ivar tree: allocations of several providers, in place of *resources*
    """

    consumer: str
    provider: str
    resources: Mapping[str, int]
    project_id: str | None
    user_id: str | None
    keep_existing: bool = False
    tree: Tree | None = None

    @property
    def allocation_tree(self) -> Tree:
        """The allocations, of one provider or several."""
        if self.tree is not None:
            return self.tree
        return Tree(
            {self.provider: dict(self.resources)}, {'': [self.provider]}
        )

    @property
    def record(self) -> Mapping[str, Any]:
        """What the store keeps of the allocations, to undo them."""
        return self.resources if self.tree is None else self.tree.document

    @property
    def body(self) -> dict[str, Any]:
        """The body of the call for a consumer that has no allocations."""
        return {
            **self.allocation_tree.document,
            'project_id': self.project_id or UNKNOWN,
            'user_id': self.user_id or UNKNOWN,
            'consumer_generation': None,
        }


class AllocationResult(enum.Enum):
    """What became of the allocations of one consumer."""

    MADE = 'made'
    # The consumer had exactly these: an earlier call made them.
    ALREADY_MADE = 'already made'
    # The provider has too little free capacity, or does not exist.
    NO_CAPACITY = 'no capacity'
    # The consumer has other allocations, and may not have both.
    CONFLICT = 'conflict'
    # Other clients changed the provider or the consumer at every try.
    CONTENDED = 'contended'
    # Allocations of an earlier claim of ours are not undone yet.
    LEFT = 'left'


def make(
    client: PlacementClient,
    allocations: Sequence[AllocationRequest],
    unsure: MutableSet[str],
    refusals: MutableMapping[str, str],
) -> dict[str, AllocationResult]:
    """Make allocations; return the result of each consumer.

    :param unsure: gets the consumers of calls that were made again: the
        service may carry out the earlier calls later
    :param refusals: gets why the service refused a consumer, in its words
    """
    bodies = {
        allocation.consumer: allocation.body for allocation in allocations
    }
    answer = client.post_allocations(bodies) if len(bodies) > 1 else None
    if answer is not None and not answer.sure:
        unsure |= bodies.keys()
    if answer is not None and answer.done:
        return dict.fromkeys(bodies, AllocationResult.MADE)
    if answer is None or answer.concurrent:
        return {
            allocation.consumer: _make_one(
                client, allocation, unsure, refusals
            )
            for allocation in allocations
        }
    half = len(allocations) // 2
    return {
        **make(client, allocations[:half], unsure, refusals),
        **make(client, allocations[half:], unsure, refusals),
    }


def _make_one(
    client: PlacementClient,
    allocation: AllocationRequest,
    unsure: MutableSet[str],
    refusals: MutableMapping[str, str],
) -> AllocationResult:
    body = allocation.body
    for tries in range(_TRIES):
        answer = client.put_allocations(allocation.consumer, body)
        if not answer.sure:
            unsure.add(allocation.consumer)
        if answer.done:
            if body['allocations'] and body['consumer_generation'] != 0:
                return AllocationResult.MADE
            body = _with_own_consumer(body, allocation)
            continue
        refusals[allocation.consumer] = ' '.join(answer.detail.split())
        of_consumer = answer.status == 409 and _GENERATION in answer.detail
        if not (of_consumer or answer.concurrent):
            return AllocationResult.NO_CAPACITY
        if 0 < tries < _TRIES - 1:
            # Others write there, too: not at the same times as they do.
            most = _PAUSE_S * 2**tries
            time.sleep(random.uniform(most / 2, most))  # noqa: S311
        if of_consumer:
            found = _after_conflict(client, allocation, body)
            if isinstance(found, AllocationResult):
                return found
            body = found
    return AllocationResult.CONTENDED


def _after_conflict(
    client: PlacementClient,
    allocation: AllocationRequest,
    body: dict[str, Any],
) -> dict[str, Any] | AllocationResult:
    """Return the body of the next call for a consumer that others changed."""
    current = client.allocations(allocation.consumer)
    if _is_there(current, allocation):
        return AllocationResult.ALREADY_MADE
    if not current['allocations']:
        return _body_without_existing(body, allocation)
    if not allocation.keep_existing:
        return AllocationResult.CONFLICT
    return _body_with_existing(current, allocation)


def _with_own_consumer(
    body: dict[str, Any], allocation: AllocationRequest
) -> dict[str, Any]:
    """Return the body of the next call where another call made the consumer.

    If that call fails later, the service deletes the consumer that it made,
    and allocations without a consumer are invisible. So the allocations are
    deleted, with the consumer, and made once more with a consumer of our own.
    """
    if not body['allocations']:
        return allocation.body
    return {**allocation.body, 'allocations': {}, 'consumer_generation': 1}


def _body_without_existing(
    body: dict[str, Any], allocation: AllocationRequest
) -> dict[str, Any]:
    """Return the body of the next call for a consumer without allocations.

    Where the service died before it made allocations, the consumer stayed,
    with its first generation; or its allocations were deleted just now.
    """
    was_new = body['consumer_generation'] is None
    return {**allocation.body, 'consumer_generation': 0 if was_new else None}


def _is_there(
    current: Mapping[str, Any], allocation: AllocationRequest
) -> bool:
    """Whether a consumer already has the allocations.

    :param current: the consumer's allocations, as the service gives them
    """
    amounts = allocation.allocation_tree.allocations
    if allocation.keep_existing:
        return _has(current, amounts, allocation.provider)
    same_size = len(current['allocations']) == len(amounts)
    return same_size and _has(current, amounts, None)


def _has(
    current: Mapping[str, Any],
    allocations: Mapping[str, Mapping[str, int]],
    own: str | None,
) -> bool:
    """Whether a consumer has allocations.

    :param allocations: uuid of a provider -> resource class -> amount
    :param own: the host's own provider; of any other provider the consumer
        may have more, since hosts share it. None: the amounts must be equal
    """
    held = current['allocations']
    if not held.keys() >= allocations.keys():
        return False
    return all(
        have == dict(amounts)
        or (
            own in allocations
            and uuid != own
            and amounts.keys() <= PLAIN
            and all(have.get(name, 0) >= n for name, n in amounts.items())
        )
        for uuid, amounts in allocations.items()
        for have in (held[uuid]['resources'],)
    )


def _body_with_existing(
    current: Mapping[str, Any], allocation: AllocationRequest
) -> dict[str, Any]:
    """Return the body for a consumer that keeps its allocations."""
    allocations = {
        uuid: {'resources': dict(held['resources'])}
        for uuid, held in current['allocations'].items()
    }
    for uuid, amounts in allocation.allocation_tree.allocations.items():
        total = Counter(amounts)
        if uuid != allocation.provider and uuid in allocations:
            # Both hosts share the provider.
            total.update(allocations[uuid]['resources'])
        allocations[uuid] = {'resources': dict(total)}
    return {
        'allocations': allocations,
        'project_id': current.get('project_id')
        or allocation.project_id
        or UNKNOWN,
        'user_id': current.get('user_id') or allocation.user_id or UNKNOWN,
        'consumer_generation': current.get('consumer_generation'),
    }


def undo_all(
    client: PlacementClient,
    records: Sequence[StageRecord],
    unsure: MutableSet[str],
) -> dict[str, Undone | Exception]:
    """Undo what several consumers have, with one call for all that have it.

    :param records: of what claims that are held no more may have left;
        anything else is not ours, and stays. Of different consumers
    :param unsure: as for :func:`undo`
    :return: what it came to, or why nothing is known, for each consumer
    """
    with futures.ThreadPoolExecutor(_READERS) as pool:
        answers = [*pool.map(partial(_read, client), records)]
    results: dict[str, Undone | Exception] = {}
    bodies: dict[str, Any] = {}
    for record, answer in zip(records, answers, strict=True):
        if isinstance(answer, Exception):
            results[record.instance_uuid] = answer
            continue
        allocations = placement_records.allocations(record)
        if _has(answer, allocations, record.host_uuid):
            bodies[record.instance_uuid] = _without(answer, allocations)
        else:
            results[record.instance_uuid] = Undone.ABSENT
    if not bodies:
        return results
    unsure |= bodies.keys()
    posted = client.post_allocations(bodies)
    if posted.sure:
        unsure -= bodies.keys()
    for record in records:
        if record.instance_uuid in bodies:
            results[record.instance_uuid] = (
                Undone.DONE if posted.done else undo(client, record, unsure)
            )
    return results


def _read(
    client: PlacementClient, record: StageRecord
) -> dict[str, Any] | Exception:
    try:
        return client.allocations(record.instance_uuid)
    except Exception as fault:
        return fault


def _without(
    held: Mapping[str, Any], allocations: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """Return what is sent to leave a consumer all but some allocations.

    Without any left, the service forgets the consumer.
    """
    left = {}
    for uuid, provider in held['allocations'].items():
        amounts = Counter(provider['resources'])
        if rest := amounts - Counter(allocations.get(uuid)):
            left[uuid] = {'resources': dict(rest)}
    return {
        'allocations': left,
        'project_id': held.get('project_id') or UNKNOWN,
        'user_id': held.get('user_id') or UNKNOWN,
        'consumer_generation': held.get('consumer_generation'),
    }


def undo(
    client: PlacementClient, record: StageRecord, unsure: MutableSet[str]
) -> Undone:
    """Delete allocations of a consumer; keep all others that it has.

    They are replaced under the consumer's generation, so that no change of
    another client is lost.

    :param unsure: gets the consumer where a call got no answer: the service
        may carry it out later
    """
    consumer = record.instance_uuid
    allocations = placement_records.allocations(record)
    sure = True
    for tries in range(_UNDO_TRIES):
        if tries:
            time.sleep(_PAUSE_S * 2 ** (tries - 1))
        held = client.allocations(consumer)
        if not _has(held, allocations, record.host_uuid):
            return Undone.ABSENT
        unsure.add(consumer)
        answer = client.put_allocations(consumer, _without(held, allocations))
        sure = sure and answer.sure
        if sure:
            unsure.discard(consumer)
        if answer.done:
            return Undone.DONE
        if not answer.concurrent:
            break
    return Undone.GAVE_UP


class ClaimTask(msgspec.Struct, eq=False):
    """The claims of a job.

    :ivar allocations: in the order of the job's placements
    :ivar hosts: uuid of a provider -> service host
    :ivar may_be_made: whether an earlier delivery or a copy of the message may
        have made the allocations
    :ivar is_recorded: whether the claims' transaction recorded the allocations
    :ivar since: monotonic time at which the task was queued
    """

    job: HostJob
    allocations: list[AllocationRequest]
    hosts: dict[str, str]
    may_be_made: bool
    is_recorded: bool
    since: float = msgspec.field(default_factory=time.monotonic)


class Call:
    """The tasks of one call, and what is learned of their consumers.

    :ivar unsure: consumers for which a call got no answer
    :ivar refusals: consumer -> why the service refused its last call
    """

    def __init__(self, tasks: Sequence[ClaimTask]) -> None:
        self.tasks = tasks
        self.unsure: set[str] = set()
        self.refusals: dict[str, str] = {}


class PlacementQueue:
    """Tasks in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[ClaimTask] = deque()
        self._busy: set[str] = set()
        self._under_way: set[Call] = set()
        self._stopping = False

    def put(self, tasks: Sequence[ClaimTask]) -> None:
        """Add tasks, which go in one call as far as they fit."""
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify()

    def take(self) -> Call | None:
        """Wait for the tasks of a call, which is under way from then on.

        :meth:`done` has to follow.

        :return: None: no task waits, or none is given out any more
        """
        with self._changed:
            while self._waiting and not self._stopping:
                tasks, left_s = self._fitting()
                if tasks and left_s <= 0:
                    for task in tasks:
                        self._waiting.remove(task)
                        self._busy.update(task.hosts)
                    call = Call(tasks)
                    self._under_way.add(call)
                    # Others take the rest, or wait no more.
                    self._changed.notify_all()
                    return call
                self._changed.wait(None if left_s == math.inf else left_s)
            return None

    def done(self, call: Call) -> None:
        """Note that a call ended; harmless if it did before.

        Its tasks need not be done: what follows an answer holds up no other
        call.
        """
        with self._changed:
            if call in self._under_way:
                self._under_way.remove(call)
                for task in call.tasks:
                    self._busy -= task.hosts.keys()
                self._changed.notify_all()

    def consumers(self) -> set[str]:
        """Return the consumers whose calls did not end yet."""
        with self._changed:
            tasks = [*self._waiting]
            for call in self._under_way:
                tasks += call.tasks
            return {each.consumer for one in tasks for each in one.allocations}

    def stop(self) -> None:
        """Give out no more tasks."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _fitting(self) -> tuple[list[ClaimTask], float]:
        """Return the tasks of the next call, and for how long it waits."""
        count, is_full = 0, False
        tasks: list[ClaimTask] = []
        for task in self._waiting:
            if count and count + len(task.allocations) > MOST_AT_ONCE:
                is_full = True
                break
            if self._busy.isdisjoint(task.hosts):
                tasks.append(task)
                count += len(task.allocations)
        if not tasks:
            return [], math.inf
        if is_full or count >= MOST_AT_ONCE or not self._under_way:
            return tasks, 0.0
        if count >= _MIN_BATCH and len(self._under_way) < _CALLS:
            return tasks, 0.0
        since = min(task.since for task in tasks)
        return tasks, since + _MAX_WAIT_S - time.monotonic()
