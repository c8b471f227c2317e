"""Searches for an order of operations that explains all their answers.

This is the check of Wing and Gong, with the states that Lowe remembers: of
two operations of which one was answered before the other was sent, the first
comes first; any others may have happened either way round. Where a model
takes the operations one by one in some such order and gives every answer
that was got, the answers are right. An operation without an answer may have
happened at any time after it was sent, or never. Operations may have an order
beside that of time: what :meth:`Timed.precedes` another one happens before it
or never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

UNANSWERED = math.inf
MOST_STATES = 200_000


class Timed(Protocol):
    """An operation.

    :ivar start: when it was sent
    :ivar end: when it was answered, by the same clock; UNANSWERED: never
    :ivar effect: the same for operations that change every state alike
    """

    @property
    def start(self) -> float: ...

    @property
    def end(self) -> float: ...

    @property
    def effect(self) -> Hashable: ...

    def precedes(self, other: Any) -> bool:
        """Whether it cannot happen once another one has happened."""


S = TypeVar('S', bound=Hashable)
T = TypeVar('T', bound=Timed)


class GaveUp(Exception):
    """The search visited too many states to go on."""


class _Bounds(NamedTuple):
    """What an operation has to come after and before, as bits.

    :ivar needs: with answers, that have happened before it
    :ivar barred_by: one of which has not happened before it
    """

    needs: int
    barred_by: int


def _bounds(sent: Sequence[Timed]) -> list[_Bounds]:
    bounds = []
    for one in sent:
        needs = barred_by = 0
        for at, other in enumerate(sent):
            if other.end != UNANSWERED and other.precedes(one):
                needs |= 1 << at
            if one.precedes(other):
                barred_by |= 1 << at
        bounds.append(_Bounds(needs, barred_by))
    return bounds


def find_order(
    operations: Sequence[T],
    initial: S,
    steps: Callable[[S, T], Iterable[S]],
    most_states: int = MOST_STATES,
) -> list[T] | None:
    """Return the operations in an order that explains them; None: none does.

    Of those without an answer the order has the ones that it needs.

    :param steps: returns the states in which an operation that gets its
        answer may leave a state; none: it cannot get that answer there
    :param most_states: how many states are visited at most
    :raises GaveUp: there are more, and no order was found so far
    """
    sent = sorted(operations, key=lambda one: one.start)
    wanted = sum(
        1 << at for at, one in enumerate(sent) if one.end != UNANSWERED
    )
    bounds = _bounds(sent)
    root = 0, initial
    # How each (operations that happened, state) was reached.
    reached: dict[tuple[int, S], tuple[tuple[int, S], int] | None] = {
        root: None
    }
    stack = [(root, _following(root, sent, bounds, steps))]
    while stack:
        node, following = stack[-1]
        if node[0] & wanted == wanted:
            return _path(node, reached, sent)
        for after, at in following:
            if after in reached:
                continue
            if len(reached) >= most_states:
                raise GaveUp
            reached[after] = node, at
            stack.append((after, _following(after, sent, bounds, steps)))
            break
        else:
            stack.pop()
    return None


def _following(
    node: tuple[int, S],
    sent: Sequence[T],
    bounds: Sequence[_Bounds],
    steps: Callable[[S, T], Iterable[S]],
) -> Iterator[tuple[tuple[int, S], int]]:
    """Yield where one more operation leads, those with answers first."""
    happened, state = node
    unanswered = []
    for at in _next(happened, sent, bounds):
        if sent[at].end == UNANSWERED:
            unanswered.append(at)
            continue
        for after in steps(state, sent[at]):
            yield (happened | 1 << at, after), at
    # Of those that do the same, the one that was sent first will do.
    first = {sent[at].effect: at for at in reversed(unanswered)}
    for at in first.values():
        for after in steps(state, sent[at]):
            # One without an effect explains nothing.
            if after != state:
                yield (happened | 1 << at, after), at


def _next(
    happened: int, sent: Sequence[T], bounds: Sequence[_Bounds]
) -> list[int]:
    """Return which operations no other one has to come before."""
    found: list[int] = []
    first_end = UNANSWERED
    for at, one in enumerate(sent):
        if happened >> at & 1:
            continue
        if one.start > first_end:
            break
        found.append(at)
        first_end = min(first_end, one.end)
    return [
        at
        for at in found
        if sent[at].start <= first_end
        and not bounds[at].needs & ~happened
        and not bounds[at].barred_by & happened
    ]


def _path(
    node: tuple[int, S],
    reached: dict[tuple[int, S], tuple[tuple[int, S], int] | None],
    sent: Sequence[T],
) -> list[T]:
    order = []
    while (step := reached[node]) is not None:
        node, at = step
        order.append(sent[at])
    return order[::-1]
