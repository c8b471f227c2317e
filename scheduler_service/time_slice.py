"""Time slices: how long a request may be worked on while other requests wait.

The thread that decides begins a slice, and long work checks between its steps
whether the slice is over. A slice belongs to its thread; a thread without a
slice may work as long as it takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_current = threading.local()


class TimeSliceOver(BaseException):
    """The work stops here, to be resumed after other requests.

    Not an ``Exception``: it is no fault, and plug-ins must not catch it.
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
    :param others_wait: whether other requests wait; else the slice lasts
    :ivar filtered: gets when the filters were done and what they left, for
        traces; None: not traced
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
        """Make it the slice of this thread until the block ends."""
        self._before = getattr(_current, 'slice', None)
        _current.slice = self
        return self

    def __exit__(self, *fault: object) -> None:
        _current.slice = self._before

    def over(self) -> bool:
        """Whether other requests wait, and the time is up."""
        return time.monotonic() >= self._end and self._others_wait()


def check() -> None:
    """Stop here if this thread's slice is over.

    To be called after a step whose result is kept, so that the work gets on
    however often it is stopped.

    :raises TimeSliceOver: other requests are processed first
    """
    current: TimeSlice | None = getattr(_current, 'slice', None)
    if current is not None and current.over():
        raise TimeSliceOver


def note_filtered(counts: list[tuple[str, int, int]]) -> None:
    """Record that the filters are done, for a trace."""
    current: TimeSlice | None = getattr(_current, 'slice', None)
    if current is not None and current.filtered is not None:
        current.filtered.at = time.monotonic()
        current.filtered.counts = counts


def renew() -> None:
    """Count this thread's slice from now, where preparing it took long."""
    current: TimeSlice | None = getattr(_current, 'slice', None)
    if current is not None:
        current.renew()
