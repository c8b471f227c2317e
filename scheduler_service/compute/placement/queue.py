"""Claims that wait for a call of the placement service.

The engine's thread puts tasks; the threads of the claimer take the tasks of
one call at a time. No two calls write to the same provider at once, since
they would fail each other. One call for many consumers costs the service less
than half of one call for each, but keeps only one of its workers busy. So a
call begins beside others where it has some consumers and few calls are under
way, where it is full, or where the others take long. Until then one thread
prepares the next call. A condition guards all state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from scheduler_service.compute.placement.claims import AllocationRequest
from scheduler_service.engine.jobs import HostJob

# How many consumers go in one call.
MOST_AT_ONCE = 16
# With so many consumers a call begins beside others, while fewer than so many
# are under way: 16 callers had 97 claims a second with these, 80 with one call
# at a time (``benchmarks.nova``; placement with two workers on two cores).
_MIN_BATCH = 5
_CALLS = 3
# A task that has waited for so long waits for no call that is under way, in
# seconds.
_MAX_WAIT_S = 0.25


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
    """The tasks of one call; without tasks, the thread ends.

    :ivar is_full: whether no further task fits
    :ivar is_under_way: whether it began and has not ended
    """

    def __init__(self) -> None:
        self.tasks: list[ClaimTask] = []
        self.is_full = False
        self.is_under_way = False


class PlacementQueue:
    """Tasks in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[ClaimTask] = deque()
        self._busy: set[str] = set()
        # The call that was taken and has not begun.
        self._next: Call | None = None
        self._under_way = 0
        self._stopping = False

    def put(self, tasks: Sequence[ClaimTask]) -> None:
        """Add tasks, which go in one call as far as they fit."""
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify()

    def take(self, idle_s: float | None) -> Call | None:
        """Wait for the tasks of a call.

        :meth:`begin` and :meth:`done` have to follow.

        :param idle_s: the longest wait; None: any
        :return: None after that time
        """
        call = Call()
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

    def begin(self, call: Call) -> list[ClaimTask]:
        """Wait until a call may begin, or further tasks join it.

        :return: the tasks that joined, after which :meth:`begin` has to be
            called again; empty: the call began
        """
        with self._changed:
            while not self._stopping:
                joined = self._join(call)
                if joined:
                    return joined
                left_s = self._left_s(call)
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            call.is_under_way = True
            self._under_way += 1
            for task in call.tasks:
                self._busy.update(task.hosts)
            self._next = None
            self._changed.notify_all()
            return []

    def done(self, call: Call) -> None:
        """Note that a call ended, or failed before it began.

        Its tasks need not be done: what follows an answer holds up no other
        call. Harmless if called again.
        """
        with self._changed:
            if self._next is call:
                self._next = None
            if call.is_under_way:
                call.is_under_way = False
                self._under_way -= 1
                for task in call.tasks:
                    self._busy -= task.hosts.keys()
            self._changed.notify_all()

    def stop(self) -> None:
        """Give out no more tasks."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _left_s(self, call: Call) -> float:
        """Return for how long a call is to wait for one that is under way."""
        if call.is_full or not self._under_way:
            return 0.0
        enough = _consumers(call.tasks) >= _MIN_BATCH
        if enough and self._under_way < _CALLS:
            return 0.0
        since = min(task.since for task in call.tasks)
        return since + _MAX_WAIT_S - time.monotonic()

    def _join(self, call: Call) -> list[ClaimTask]:
        """Move the tasks that fit into a call; return them."""
        count = _consumers(call.tasks)
        joined: list[ClaimTask] = []
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


def _consumers(tasks: Iterable[ClaimTask]) -> int:
    return sum(len(task.allocations) for task in tasks)
