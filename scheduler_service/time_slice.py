"""Turns: how long the work for one request may go on while others wait.

The thread that decides begins a turn, and what works for long asks between
its steps whether the turn is over. Each thread has a turn of its own; one
without a turn may work as long as it takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_current = threading.local()


class TimeSliceOver(BaseException):
    """The work stops here, to go on when others had their turn.

    Not an ``Exception``: it is no fault, and no plug-in may take it for one.
    """


class Filtered:
    """When the filters of a request were done, monotonic, and the counts.

    :ivar at: None: they were not done
    :ivar counts: (filter, hosts before, hosts after) of each
    """

    __slots__ = ('at', 'counts')

    def __init__(self) -> None:
        self.at: float | None = None
        self.counts: list[tuple[str, int, int]] = []


class TimeSlice:
    """A time to work in.

    :param seconds: how long it lasts at least
    :param others_wait: whether anybody waits; else it goes on
    :ivar filtered: gets when the filters were done and what they left, for
        whoever wants to know; None: nobody does
    """

    __slots__ = ('_before', '_end', '_others_wait', '_seconds', 'filtered')

    def __init__(
        self, seconds: float, others_wait: Callable[[], bool]
    ) -> None:
        self._before: TimeSlice | None = None
        self._seconds = seconds
        self.filtered: Filtered | None = None
        self._others_wait = others_wait
        self.renew()

    def renew(self) -> None:
        """Count its time from now."""
        self._end = time.monotonic() + self._seconds

    def __enter__(self) -> TimeSlice:
        """Make it the turn of this thread until the block ends."""
        self._before = getattr(_current, 'turn', None)
        _current.turn = self
        return self

    def __exit__(self, *fault: object) -> None:
        _current.turn = self._before

    def over(self) -> bool:
        """Whether it is time for others."""
        return time.monotonic() >= self._end and self._others_wait()


def check() -> None:
    """Stop here if this thread's turn is over.

    To be called after a step whose result is kept, so that the work gets on
    however often it is stopped.

    :raises TimeSliceOver: others wait, and have their turn first
    """
    turn: TimeSlice | None = getattr(_current, 'turn', None)
    if turn is not None and turn.over():
        raise TimeSliceOver


def note_filtered(counts: list[tuple[str, int, int]]) -> None:
    """Note that the filters are done, if anybody wants to know."""
    turn: TimeSlice | None = getattr(_current, 'turn', None)
    if turn is not None and turn.filtered is not None:
        turn.filtered.at = time.monotonic()
        turn.filtered.counts = counts


def renew() -> None:
    """Count this thread's turn from now, where preparing it took long."""
    turn: TimeSlice | None = getattr(_current, 'turn', None)
    if turn is not None:
        turn.renew()
