"""What the RPC reference promises of one instance, as a model.

A model takes one operation at a time. Which answers of real daemons it can
explain is searched by :mod:`tests.rigs.linearizability`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.rigs.linearizability import UNANSWERED


class Place(NamedTuple):
    """Where an instance is.

    :ivar state: claimed, confirmed, reported, or empty: it is not known
    :ivar target: where it moves to; empty: it does not move
    :ivar by: the number of the operation that claimed, as long as no caller
        got the place as an answer; -1 otherwise
    :ivar target_by: the same of the move
    """

    state: str = ''
    host: str = ''
    target: str = ''
    by: int = -1
    target_by: int = -1

    @property
    def is_claimed(self) -> bool:
        """Whether it holds a claim of its own, beside that of a move."""
        return self.state in ('claimed', 'confirmed')


NOWHERE = Place()


class Operation(NamedTuple):
    """What was asked for one instance, and what the answer says of it.

    :ivar kind: select, move, release, confirm, drop_moves; has, gone or sync,
        which hosts report; undo, which a daemon does when an answer does not
        reach its caller; read
    :ivar start: when it was sent
    :ivar end: when it was answered; UNANSWERED: never
    :ivar answer: of select and move the host; of release, confirm and
        drop_moves whether it changed anything; of read the place
    :ivar host: that reports
    :ivar listed: whether the host of a sync has the instance
    :ivar number: of a select or move without an answer, and of its undo
    :ivar sent: when it had been sent for certain: the broker had it, or its
        caller had stopped waiting
    """

    kind: str
    start: float
    end: float
    answer: Any = None
    host: str = ''
    listed: bool = False
    number: int = -1
    sent: float = UNANSWERED

    @property
    def is_claim(self) -> bool:
        """Whether it asks for a place."""
        return self.kind in ('select', 'move')

    @property
    def is_told(self) -> bool:
        """Whether a caller got an answer."""
        return self.end != UNANSWERED and self.kind in _TOLD

    @property
    def effect(self) -> Any:
        """What it does beside its answer."""
        return self.kind, self.host, self.listed, self.number

    def precedes(self, other: Operation) -> bool:
        """Whether another one, which was sent after it, ends it.

        What it claims is claimed before then, or never.
        """
        if other.kind == 'undo':
            return self.is_claim and self.number == other.number
        return self.sent < other.start and other.kind in _ENDS.get(
            self.kind, ()
        )


class Model:
    """The states that an operation may leave.

    :param hosts: where an instance may be placed
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)

    def steps(self, place: Place, one: Operation) -> Sequence[Place]:
        """Return where an operation may leave an instance.

        :return: empty where it cannot get its answer
        """
        if one.kind == 'select':
            return self._select(place, one)
        if one.kind == 'move':
            return self._move(place, one)
        if one.kind == 'read':
            return (place,) if place[:3] == one.answer[:3] else ()
        if one.kind in _REPORTS:
            return (_REPORTS[one.kind](place, one),)
        if one.kind == 'undo':
            return (_undone(place, one.number),)
        after = _CHANGES[one.kind](place)
        # A release of a place that is only reported takes nothing.
        changed = after != place
        if one.end != UNANSWERED and changed is not one.answer:
            return ()
        return (after,)

    def _select(self, place: Place, one: Operation) -> Sequence[Place]:
        """A claim is repeated as it is; otherwise one is made."""
        if place.is_claimed:
            return _repeated(place, one, place.host, by=-1)
        return [
            place._replace(state='claimed', host=host, by=one.number)
            for host in self._chosen(one)
            if host != place.target
        ]

    def _move(self, place: Place, one: Operation) -> Sequence[Place]:
        """The same of the second claim; what is nowhere gets its first."""
        if not place.state:
            return self._select(place, one)
        if place.target:
            return _repeated(place, one, place.target, target_by=-1)
        return [
            place._replace(target=host, target_by=one.number)
            for host in self._chosen(one)
            if host != place.host
        ]

    def _chosen(self, one: Operation) -> Sequence[str]:
        return self._hosts if one.end == UNANSWERED else (one.answer,)


def _repeated(
    place: Place, one: Operation, host: str, **answered: int
) -> Sequence[Place]:
    """Return the place after its claim was the answer of one more request.

    From then on no undo takes it back.
    """
    if one.end == UNANSWERED:
        return (place,)
    return (place._replace(**answered),) if one.answer == host else ()


def _released(place: Place) -> Place:
    if place.state == 'reported':
        return _stays(place)
    return NOWHERE


def _stays(place: Place) -> Place:
    """Return the place without a move."""
    return place._replace(target='', target_by=-1)


def _moved(place: Place, state: str) -> Place:
    """Return the place that an instance moved to."""
    return Place(state, place.target, '', place.target_by)


def _confirmed(place: Place) -> Place:
    if place.target:
        return _moved(place, 'confirmed')
    if place.state == 'claimed':
        return place._replace(state='confirmed')
    return place


def _has(place: Place, one: Operation) -> Place:
    """A host has it: where it is claimed, where it moves to, or astray."""
    if one.host in (place.host, place.target):
        return _listed(place, one.host)
    return Place('reported', one.host)


def _listed(place: Place, host: str) -> Place:
    """A host lists it among its instances."""
    if not place.state:
        return Place('reported', host)
    if place.target == host:
        return _moved(place, 'confirmed')
    if place.host == host and place.state == 'claimed':
        return place._replace(state='confirmed')
    return place


def _gone(place: Place, one: Operation) -> Place:
    """A host does not have it: it has moved, or is nowhere any more."""
    if one.host and place.target == one.host:
        return _stays(place)
    if place.host != one.host:
        return place
    if place.target:
        state = 'claimed' if place.state == 'reported' else place.state
        return _moved(place, state)
    return NOWHERE


def _synced(place: Place, one: Operation) -> Place:
    """A host lists all that it has; what is only claimed may still start."""
    if one.listed:
        return _listed(place, one.host)
    if place.host != one.host or place.state == 'claimed':
        return place
    return _gone(place, one)


def _undone(place: Place, number: int) -> Place:
    """Take back what an operation claimed, if no host has confirmed it."""
    if place.by == number and place.state == 'claimed':
        return NOWHERE
    if place.target_by == number:
        return _stays(place)
    return place


_TOLD = ('select', 'move', 'release', 'confirm', 'drop_moves')
# What ends requests that were sent before, by the kind of these.
_ENDS = {'select': ('release',), 'move': ('release', 'drop_moves')}
_CHANGES: dict[str, Callable[[Place], Place]] = {
    'release': _released,
    'confirm': _confirmed,
    'drop_moves': _stays,
}
_REPORTS: dict[str, Callable[[Place, Operation], Place]] = {
    'has': _has,
    'gone': _gone,
    'sync': _synced,
}
