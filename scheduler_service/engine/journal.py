"""What is done to the engine's host table, and decided on it, in its order.

The engine's thread adds to it; the thread that records takes it away. With the
first checkpoint and all that follows, any state of the table can be made
again: see :mod:`scheduler_service.store.records.playback`. What is done is an
entry itself: :meth:`Journal.apply` does it and adds it.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec

from scheduler_service.columns import HostTable, Overlay
from scheduler_service.model import Request
from scheduler_service.pipeline import Assignment, Bonuses

T_contra = TypeVar('T_contra', contravariant=True)
R_co = TypeVar('R_co', covariant=True)


class Effect(Protocol[T_contra, R_co]):
    """An entry that has an effect: on a table, or on what is assumed there."""

    def apply(self, to: T_contra, /) -> R_co: ...


class Decided(msgspec.Struct, eq=False, gc=False):
    """Hosts that were selected for the instances of a request, or why none.

    :ivar placed: in the order in which they were placed
    :ivar earlier: how many of them earlier turns had placed
    :ivar lent: rows, and amounts that did not count on them
    :ivar bounds: the hosts that extenders and candidates left, by instance
    :ivar attempt: how often the claim was lost before
    :ivar error: its name; empty: hosts were selected, and are assumed
    :ivar reasons: as of a :class:`~scheduler_service.pipeline.ScheduleResult`
    :ivar place: number of the block that it is recorded in, and the index
        there; None: it is not recorded yet
    """

    request: Request
    placed: Sequence[Assignment]
    earlier: int
    lent: tuple[Any, Mapping[str, int]] | None
    bounds: Bonuses | None
    attempt: int
    error: str
    reasons: Mapping[str, Any]
    place: tuple[int, int, int] | None = None


class PodPlaced(msgspec.Struct, array_like=True):
    """A pod that is assumed on the host of a row."""

    kind: ClassVar[int] = 1
    #: How many instances.
    assumes: ClassVar[int] = 1

    uid: str
    row: int
    amounts: Mapping[str, int]

    def apply(self, overlay: Overlay) -> None:
        """Assume it."""
        overlay.assume_pod(self.row, self.amounts)


class Ended(msgspec.Struct, array_like=True):
    """What was assumed is claimed, or comes to nothing.

    :ivar claimed: how many instances are, the first ones; -1: all that is
        assumed is forgotten
    """

    kind: ClassVar[int] = 2

    claimed: int

    def apply(self, overlay: Overlay) -> None:
        """Keep or forget what is assumed."""
        if self.claimed < 0:
            overlay.forget()
        else:
            overlay.commit(self.claimed)


class Changed(msgspec.Struct, array_like=True):
    """Claims that a caller changed; what became of the table is apart.

    :ivar change: release, confirm and so on
    :ivar request_id: of the caller; None: it sent none
    """

    kind: ClassVar[int] = 6

    change: str
    instances: Sequence[str]
    request_id: str | None


class Checkpoint(NamedTuple):
    """A copy of the table with nothing assumed.

    :ivar follows: whether the entries before it lead to it
    """

    table: HostTable
    follows: bool


class Journal:
    """Entries that wait to be recorded.

    :ivar due: whether a checkpoint is to be made
    :ivar keeps: whether entries are kept
    """

    def __init__(self) -> None:
        self.due = True
        self.keeps = False
        # Whether the entries before are all there.
        self._whole = False
        self._waiting = collections.deque[Any]()

    def keep(self, keeps: bool) -> None:
        """Keep entries from now on, or none; the first is a checkpoint."""
        if keeps != self.keeps:
            self.due, self._whole = True, False
        self.keeps = keeps

    def apply(self, effect: Effect[T_contra, R_co], to: T_contra) -> R_co:
        """Do what an entry says, and add it; return what that returns."""
        result = effect.apply(to)
        self.put(effect)
        return result

    def put(self, entry: Any) -> None:
        """Add an entry: of what was selected, or what has no effect here."""
        if self._whole:
            self._waiting.append(entry)

    def checkpoint(self, table: HostTable, follows: bool) -> None:
        """Add a checkpoint of a table in which nothing is assumed.

        :param follows: whether the entries before it lead to it
        """
        if self.keeps:
            self.due = False
            # The recorder reads the aggregates of the topology alone.
            copied = table.copy(table.topology)
            self._waiting.append(Checkpoint(copied, follows and self._whole))
            self._whole = True

    def take(self) -> Sequence[Any]:
        """Take what waits, in its order; any one thread calls this."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(len(waiting))]
