"""Claims that wait for a call of the placement service, and who goes next.

The engine's thread puts tasks, the threads of the claimer take those of one
call at a time. No two calls are at the same provider at once, since such calls
fail each other. One call for many consumers costs the service less than half
of one for each, so a second call begins beside the first only where it is
full, or where the first takes unusually long; and what the engine does next
may wait for as long as nothing could be done with it. A condition guards all.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

# How many consumers go in one call.
MOST_AT_ONCE = 16
# Where a call takes longer than this, or than twice its usual time, others
# begin beside it, in seconds.
_PATIENCE_S = 0.25
# How much the last call counts in what is usual.
_LAST = 0.2
# One that took longer, in seconds, was not usual.
_LONGEST_S = 1.0
# What gathers is claimed in our store after this part of a call's usual time,
# so that it is ready when the call ends.
_READY = 0.8


class Waiting(Protocol):
    """A task: the claims of one job."""

    wanted: list[Any]
    since: float

    @property
    def hosts(self) -> Mapping[str, str]:
        """The service host of each provider that it is at."""
        ...


T = TypeVar('T', bound=Waiting)


class Call(NamedTuple, Generic[T]):
    """The tasks of one call; without any, it is the end.

    :ivar began: monotonic time
    """

    tasks: list[T]
    began: float


class PlacementQueue(Generic[T]):
    """Tasks in the order in which they came.

    :ivar on_call_end: called after a call ended; it may not call back
    """

    def __init__(self) -> None:
        self.on_call_end: Callable[[], None] = _do_nothing
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._busy: set[str] = set()
        self._pending = 0
        # Monotonic times at which the calls began that are under way.
        self._calls: list[float] = []
        self._ended = False
        self._usual_s = 0.0
        self._held = False
        self._stopping = False

    @property
    def has_pending(self) -> bool:
        """Whether tasks are there that are not done."""
        return self._pending > 0

    def put(self, task: T) -> None:
        """Add a task."""
        with self._changed:
            self._pending += 1
            self._waiting.append(task)
            if not self._held:
                self._changed.notify()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Give out none of the tasks that are put before all of them are."""
        self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                if self._waiting:
                    self._changed.notify()

    def gather_s(self, count: int) -> float:
        """Return for how long it is worth it that requests gather, in seconds.

        While a call is under way no other begins, so it costs them nothing
        to be claimed together in our store. The engine's thread asks.

        :param count: how many wait for the engine
        """
        calls, usual = self._calls, self._usual_s
        if not calls or count >= MOST_AT_ONCE or self._stopping:
            return 0.0
        # Where some are ready for the next call, those after them wait for
        # its time, too.
        due_s = self._patience_s if self._waiting else _READY * usual
        return max(0.0, calls[-1] + due_s - time.monotonic())

    def take(self, idle_s: float | None) -> Call[T] | None:
        """Wait for the tasks of a call; :meth:`done` has to follow.

        :param idle_s: the longest wait; None: any
        :return: None after that time
        """
        until = None if idle_s is None else time.monotonic() + idle_s
        with self._changed:
            while True:
                taken = self._free_tasks()
                call = Call(taken, time.monotonic())
                if taken or self._stopping:
                    self._calls = [*self._calls, call.began]
                if self._ended:
                    # Not before the next call began, if one does.
                    self._ended = False
                    self.on_call_end()
                if taken or self._stopping:
                    return call
                limits = [self._patience(), until and until - time.monotonic()]
                limit = min((x for x in limits if x is not None), default=None)
                if limit is not None and limit <= 0:
                    return None
                self._changed.wait(limit)

    def done(self, call: Call[T]) -> None:
        """Say that a call ended."""
        taken_s = time.monotonic() - call.began
        with self._changed:
            for task in call.tasks:
                self._busy -= task.hosts.keys()
            self._pending -= len(call.tasks)
            self._calls = [one for one in self._calls if one != call.began]
            self._ended = True
            taken_s = min(taken_s, _LONGEST_S)
            usual = self._usual_s or taken_s
            self._usual_s = usual + _LAST * (taken_s - usual)
            self._changed.notify_all()

    def stop(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    @property
    def _patience_s(self) -> float:
        return max(_PATIENCE_S, 2 * self._usual_s)

    def _patience(self) -> float | None:
        """Return for how long a thread may wait; None: until it is woken."""
        if not self._waiting:
            return None
        left = self._waiting[0].since + self._patience_s - time.monotonic()
        return left if left > 0 else None

    def _free_tasks(self) -> list[T]:
        """Take the tasks of one call; none where it is to wait."""
        if self._held:
            return []
        taken: list[T] = []
        count = 0
        full = False
        for task in self._waiting:
            if taken and count + len(task.wanted) > MOST_AT_ONCE:
                full = True
                break
            if self._busy.isdisjoint(task.hosts):
                taken.append(task)
                count += len(task.wanted)
        if not taken or self._is_early(taken, full or count >= MOST_AT_ONCE):
            return []
        for task in taken:
            self._waiting.remove(task)
            self._busy.update(task.hosts)
        return taken

    def _is_early(self, tasks: Sequence[T], full: bool) -> bool:
        """Whether more tasks can join until a call that is under way ends."""
        if full or not self._calls:
            return False
        return time.monotonic() - tasks[0].since < self._patience_s


def _do_nothing() -> None:
    """Do nothing: nobody waits for the end of a call."""
