"""Time slices: how long a request may be worked on while other requests wait.

The thread that decides begins a slice, and long work checks between its steps
whether the slice is over. A slice belongs to its thread; a thread without a
slice may work as long as it takes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

# (filter, hosts before, hosts after) of each filter.
Counts = list[tuple[str, int, int]]


class TimeSliceOver(BaseException):
    """The work stops here, to be resumed after other requests.

    Not an ``Exception``: it is no fault, and plug-ins must not catch it.
    """


class _Turn(threading.local):
    """The turn of a thread.

    :ivar end: monotonic time from which others may have their turn
    :ivar others_wait: whether anybody waits; else it goes on
    :ivar filtered: when the filters of a request were done, monotonic, and
        the counts; None: they were not done
    """

    seconds = 0.0
    end = math.inf
    others_wait: Callable[[], bool]
    filtered: tuple[float, Counts] | None = None


_turn = _Turn()


def begin(seconds: float, others_wait: Callable[[], bool]) -> None:
    """Begin a turn of this thread, which lasts until :func:`end`.

    :param seconds: how long it lasts at least
    :param others_wait: whether anybody waits; else it goes on
    """
    turn = _turn
    turn.seconds, turn.others_wait = seconds, others_wait
    turn.end = time.monotonic() + seconds
    turn.filtered = None


def end() -> tuple[float, Counts] | None:
    """End this thread's turn; return when its filters were done, and counts.

    :return: None: they were not done
    """
    _turn.end = math.inf
    return _turn.filtered


def check() -> None:
    """Stop here if this thread's slice is over.

    To be called after a step whose result is kept, so that the work gets on
    however often it is stopped.

    :raises TimeSliceOver: other requests are processed first
    """
    if time.monotonic() >= _turn.end and _turn.others_wait():
        raise TimeSliceOver


def note_filtered(counts: Counts) -> None:
    """Note that the filters are done, and what they left."""
    _turn.filtered = time.monotonic(), counts


def renew() -> None:
    """Count this thread's turn from now, where preparing it took long."""
    if _turn.end < math.inf:
        _turn.end = time.monotonic() + _turn.seconds
