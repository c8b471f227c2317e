"""Claims that wait for a call of the placement service.

The engine's thread puts tasks; the threads of the claimer take the tasks of
one call at a time. No two calls write to the same provider at once, since
they would fail each other. One call for many consumers costs the service less
than half of one call for each, but keeps only one of its workers busy. So a
call begins beside others where it has some consumers and few calls are under
way, where it is full, or where the others take unusually long. Until then one
thread prepares the next call. A condition guards all state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

# How many consumers go in one call.
MOST_AT_ONCE = 16
# With so many consumers a call begins beside others, while fewer than so many
# are under way: 16 callers had 97 claims a second with these, 80 with one call
# at a time (``benchmarks.nova``; placement with two workers on two cores).
_MIN_BATCH = 5
_CALLS = 3
# Where a call takes longer than this, or than twice its usual time, others
# begin beside it, in seconds.
_MAX_WAIT_S = 0.25
# Weight of the newest call in the mean.
_NEWEST_SHARE = 0.2
# A longer call counts as this long in the mean, in seconds.
_MAX_COUNTED_S = 1.0


class Waiting(Protocol):
    """A task: the claims of one job."""

    allocations: list[Any]
    since: float

    @property
    def hosts(self) -> Mapping[str, str]:
        """The service host of each provider that the claims are on."""
        ...


T = TypeVar('T', bound=Waiting)


class Call(Generic[T]):
    """The tasks of one call; without tasks, the thread ends.

    :ivar is_full: whether no further task fits
    :ivar began: monotonic time; None: not begun, or ended
    """

    def __init__(self) -> None:
        self.tasks: list[T] = []
        self.is_full = False
        self.began: float | None = None


class PlacementQueue(Generic[T]):
    """Tasks in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._busy: set[str] = set()
        # The call that was taken and has not begun.
        self._next: Call[T] | None = None
        # Start times of the calls under way, monotonic.
        self._calls: list[float] = []
        self._mean_call_s = 0.0
        self._stopping = False

    def put(self, tasks: Sequence[T]) -> None:
        """Add tasks, which go in one call as far as they fit."""
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify()

    def take(self, idle_s: float | None) -> Call[T] | None:
        """Wait for the tasks of a call.

        :meth:`begin` and :meth:`done` have to follow.

        :param idle_s: the longest wait; None: any
        :return: None after that time
        """
        call: Call[T] = Call()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopping or (self._next is None and self._join(call))
                ),
                idle_s,
            )
            if call.tasks:
                self._next = call
            return call if call.tasks or self._stopping else None

    def begin(self, call: Call[T]) -> list[T]:
        """Wait until a call may begin, or further tasks join it.

        :return: the tasks that joined, after which :meth:`begin` has to be
            called again; empty: the call began
        """
        with self._changed:
            while not self._stopping:
                joined = self._join(call)
                if joined:
                    return joined
                if not self._is_early(call):
                    break
                self._changed.wait(self._left_s(call))
            call.began = time.monotonic()
            self._calls = [*self._calls, call.began]
            for task in call.tasks:
                self._busy.update(task.hosts)
            self._next = None
            self._changed.notify_all()
            return []

    def end(self, call: Call[T]) -> None:
        """Note that a call ended; its tasks may not be done yet."""
        with self._changed:
            self._end(call)

    def done(self, call: Call[T]) -> None:
        """Note that the tasks of a call are done."""
        with self._changed:
            if self._next is call:
                # The call failed before it began: the next may be prepared.
                self._next = None
                self._changed.notify_all()
            self._end(call)

    def _end(self, call: Call[T]) -> None:
        if call.began is None:
            return
        taken_s = min(time.monotonic() - call.began, _MAX_COUNTED_S)
        usual = self._mean_call_s or taken_s
        self._mean_call_s = usual + _NEWEST_SHARE * (taken_s - usual)
        self._calls = [began for began in self._calls if began != call.began]
        call.began = None
        for task in call.tasks:
            self._busy -= task.hosts.keys()
        self._changed.notify_all()

    def stop(self) -> None:
        """Give out no more tasks."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    @property
    def _max_wait_s(self) -> float:
        return max(_MAX_WAIT_S, 2 * self._mean_call_s)

    def _left_s(self, call: Call[T]) -> float:
        """Return for how long a call may still wait for others to end."""
        since = min(task.since for task in call.tasks)
        return since + self._max_wait_s - time.monotonic()

    def _is_early(self, call: Call[T]) -> bool:
        """Whether a call is to wait until one that is under way ends."""
        under_way = len(self._calls)
        if call.is_full or not under_way:
            return False
        if under_way < _CALLS and _consumers(call.tasks) >= _MIN_BATCH:
            return False
        return self._left_s(call) > 0

    def _join(self, call: Call[T]) -> list[T]:
        """Move the tasks that fit into a call; return them."""
        count = _consumers(call.tasks)
        joined: list[T] = []
        for task in self._waiting:
            if count and count + len(task.allocations) > MOST_AT_ONCE:
                call.is_full = True
                break
            if self._busy.isdisjoint(task.hosts):
                joined.append(task)
                count += len(task.allocations)
        call.is_full = call.is_full or count >= MOST_AT_ONCE
        for task in joined:
            self._waiting.remove(task)
        call.tasks += joined
        return joined


def _consumers(tasks: Iterable[Waiting]) -> int:
    return sum(len(task.allocations) for task in tasks)
