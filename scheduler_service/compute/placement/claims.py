"""Makes allocations for claims in as few calls as can be, and undoes them.

Stateless but for the client: any thread may call it. Several consumers go in
one POST, which the service does for all or for none. Where it refuses, the
batch is halved until those that do not fit are alone; where others changed a
provider at the same time, each goes in a PUT of its own.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Mapping, MutableSet, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.compute.placement.client import (
    PLAIN,
    Answer,
    PlacementClient,
)

# What the service itself uses for consumers without a project or a user.
UNKNOWN = '00000000-0000-0000-0000-000000000000'
_TRIES = 5
# So often it is tried to undo at once, after this pause at first, in seconds,
# which doubles. Then others have their turn.
_UNDO_TRIES = 3
_PAUSE_S = 0.1
# So many consumers are read at a time.
_READERS = 4
_GENERATION = 'consumer generation conflict'


class AllocationRequest(NamedTuple):
    """Allocations that a consumer is to have.

    :ivar provider: the host's own
    :ivar resources: of that provider
    :ivar keep_existing: whether it may have others, that it keeps
    :ivar tree: of several providers, in place of *resources*
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
        """What is to be known of the allocations if they are undone."""
        return self.resources if self.tree is None else self.tree.document

    @property
    def body(self) -> dict[str, Any]:
        """What is sent for a consumer that has none yet."""
        return {
            **self.allocation_tree.document,
            'project_id': self.project_id or UNKNOWN,
            'user_id': self.user_id or UNKNOWN,
            'consumer_generation': None,
        }


class AllocationResult(enum.Enum):
    """What became of the allocations of one consumer."""

    MADE = 'made'
    # It had exactly these: an earlier call made them.
    ALREADY_MADE = 'already made'
    # The provider has no room, or is not there.
    NO_CAPACITY = 'no capacity'
    # It has others, and may not have any beside them.
    CONFLICT = 'conflict'
    # Others changed the same again and again.
    CONTENDED = 'contended'
    # An earlier claim of ours left something, which is not undone yet.
    LEFT = 'left'


class Undone(enum.Enum):
    """What undoing the allocations of one consumer came to."""

    DONE = 'done'
    # It did not have them.
    ABSENT = 'absent'
    # The service refused again and again: it may have them still.
    GAVE_UP = 'gave up'


def make(
    client: PlacementClient,
    wanted: Sequence[AllocationRequest],
    unsure: MutableSet[str],
) -> dict[str, AllocationResult]:
    """Make allocations; return what became of each consumer's.

    :param unsure: gets the consumers of calls that were made again: the
        service may carry out the earlier ones later
    :raises PlacementUnavailable: some may be made
    """
    if len(wanted) == 1:
        return {wanted[0].consumer: _make_one(client, wanted[0], unsure)}
    answer = client.post_allocations(
        {allocation.consumer: allocation.body for allocation in wanted}
    )
    if not answer.sure:
        unsure |= {allocation.consumer for allocation in wanted}
    if answer.done:
        return dict.fromkeys(
            (allocation.consumer for allocation in wanted),
            AllocationResult.MADE,
        )
    if answer.concurrent:
        return {
            allocation.consumer: _make_one(client, allocation, unsure)
            for allocation in wanted
        }
    half = len(wanted) // 2
    return {
        **make(client, wanted[:half], unsure),
        **make(client, wanted[half:], unsure),
    }


def _make_one(
    client: PlacementClient, wanted: AllocationRequest, unsure: MutableSet[str]
) -> AllocationResult:
    body = wanted.body
    for _ in range(_TRIES):
        answer = client.put_allocations(wanted.consumer, body)
        if not answer.sure:
            unsure.add(wanted.consumer)
        if answer.done:
            if body['allocations'] and body['consumer_generation'] != 0:
                return AllocationResult.MADE
            body = _with_own_consumer(body, wanted)
        elif _has_others(answer):
            found = client.allocations(wanted.consumer)
            if is_there(found, wanted):
                return AllocationResult.ALREADY_MADE
            if not found['allocations']:
                body = _without_any(body, wanted)
                continue
            if not wanted.keep_existing:
                return AllocationResult.CONFLICT
            body = _together(found, wanted)
        elif not answer.concurrent:
            return AllocationResult.NO_CAPACITY
    return AllocationResult.CONTENDED


def _with_own_consumer(
    body: dict[str, Any], wanted: AllocationRequest
) -> dict[str, Any]:
    """Return what is sent next where another call had made the consumer.

    If that call fails later, the service deletes the consumer that it made,
    and nobody sees allocations without one. So what was made goes again, and
    its consumer with it, and is made once more with a consumer of its own.
    """
    if not body['allocations']:
        return wanted.body
    return {**wanted.body, 'allocations': {}, 'consumer_generation': 1}


def _without_any(
    body: dict[str, Any], wanted: AllocationRequest
) -> dict[str, Any]:
    """Return what is sent next for a consumer that has nothing.

    Where the service died before it made allocations, the consumer stayed,
    with its first generation; or others have just taken its allocations away.
    """
    was_new = body['consumer_generation'] is None
    return {**wanted.body, 'consumer_generation': 0 if was_new else None}


def _has_others(answer: Answer) -> bool:
    return answer.status == 409 and _GENERATION in answer.detail


def is_there(found: Mapping[str, Any], wanted: AllocationRequest) -> bool:
    """Whether a consumer's allocations are what is wanted.

    :param found: the consumer's allocations, as the service gives them
    """
    allocations = wanted.allocation_tree.allocations
    own = wanted.provider if wanted.keep_existing else None
    if not _has(found, allocations, own):
        return False
    return wanted.keep_existing or len(found['allocations']) == len(
        allocations
    )


def _has(
    found: Mapping[str, Any],
    allocations: Mapping[str, Mapping[str, int]],
    own: str | None,
) -> bool:
    """Whether a consumer has allocations.

    :param own: the host's own provider; of others the consumer may have more,
        since another host shares them. None: of none of them
    """
    held = found['allocations']
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


def _together(
    found: Mapping[str, Any], wanted: AllocationRequest
) -> dict[str, Any]:
    """Return what is sent for a consumer that keeps what it has."""
    allocations = {
        uuid: {'resources': dict(held['resources'])}
        for uuid, held in found['allocations'].items()
    }
    for uuid, amounts in wanted.allocation_tree.allocations.items():
        total = Counter(amounts)
        if uuid != wanted.provider and uuid in allocations:
            # Both hosts share it.
            total.update(allocations[uuid]['resources'])
        allocations[uuid] = {'resources': dict(total)}
    return {
        'allocations': allocations,
        'project_id': found.get('project_id') or wanted.project_id or UNKNOWN,
        'user_id': found.get('user_id') or wanted.user_id or UNKNOWN,
        'consumer_generation': found.get('consumer_generation'),
    }


def _less(held: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, int]:
    """Return what is left of amounts."""
    left = {name: n - taken.get(name, 0) for name, n in held.items()}
    return {name: n for name, n in left.items() if n > 0}


class Remnant(NamedTuple):
    """What a claim that is held no more may have left.

    :ivar own: the host's own provider
    :ivar allocations: what was made; anything else is not ours, and stays
    """

    consumer: str
    own: str
    allocations: Mapping[str, Mapping[str, int]]


def undo_all(
    client: PlacementClient,
    remnants: Sequence[Remnant],
    unsure: MutableSet[str],
) -> dict[str, Undone | Exception]:
    """Undo what several consumers have, with one call for all that have it.

    :param remnants: of different consumers
    :param unsure: as for :func:`undo`
    :return: what it came to, or why nothing is known, for each consumer
    :raises PlacementUnavailable: all may still be there
    """
    with futures.ThreadPoolExecutor(_READERS) as pool:
        answers = list(
            pool.map(lambda remnant: _read(client, remnant), remnants)
        )
    results: dict[str, Undone | Exception] = {}
    bodies: dict[str, Any] = {}
    for remnant, answer in zip(remnants, answers, strict=True):
        if isinstance(answer, Exception):
            results[remnant.consumer] = answer
        elif _has(answer, remnant.allocations, remnant.own):
            bodies[remnant.consumer] = _without(answer, remnant.allocations)
        else:
            results[remnant.consumer] = Undone.ABSENT
    if not bodies:
        return results
    unsure |= bodies.keys()
    posted = client.post_allocations(bodies)
    if posted.sure:
        unsure -= bodies.keys()
    for remnant in remnants:
        if remnant.consumer in bodies:
            results[remnant.consumer] = (
                Undone.DONE if posted.done else undo(client, remnant, unsure)
            )
    return results


def _read(
    client: PlacementClient, remnant: Remnant
) -> dict[str, Any] | Exception:
    """Return what a consumer has, or the fault of the call."""
    try:
        return client.allocations(remnant.consumer)
    except Exception as fault:
        return fault


def _without(
    held: Mapping[str, Any], allocations: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """Return what is sent to leave a consumer all but some allocations.

    Without any left, the service forgets the consumer.
    """
    return {
        'allocations': {
            uuid: {'resources': left}
            for uuid, provider in held['allocations'].items()
            if (
                left := _less(provider['resources'], allocations.get(uuid, {}))
            )
        },
        'project_id': held.get('project_id') or UNKNOWN,
        'user_id': held.get('user_id') or UNKNOWN,
        'consumer_generation': held.get('consumer_generation'),
    }


def undo(
    client: PlacementClient, remnant: Remnant, unsure: MutableSet[str]
) -> Undone:
    """Take away what a consumer has of some providers; keep all else.

    What it has is read with its generation, so that nothing is taken of what
    others change meanwhile.

    :param unsure: gets the consumer where a call got no answer, which the
        service may carry out later
    :raises PlacementUnavailable: it may still be there
    """
    consumer, own, allocations = remnant
    sure = True
    for tries in range(_UNDO_TRIES):
        if tries:
            time.sleep(_PAUSE_S * 2 ** (tries - 1))
        held = client.allocations(consumer)
        if not _has(held, allocations, own):
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
