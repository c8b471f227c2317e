"""Claims that wait for a call of the placement service.

The engine's thread puts tasks; threads of the claimer take the tasks of one
call at a time. No two calls write to the same provider at once, since
they would fail each other. One call for many consumers costs the service less
than half of one call for each, but keeps only one of its workers busy. So a
call begins beside others where it has some consumers and few calls are under
way, where it is full, or where the others take long. A condition guards all
state.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from scheduler_service.compute.placement.claims import AllocationRequest
from scheduler_service.engine.jobs import HostJob

# How many consumers go in one call.
MOST_AT_ONCE = 16
# A call begins beside others once _MIN_BATCH consumers wait, while fewer than
# _CALLS calls are under way: 16 callers had 97 claims a second with these, 80
# with one call at a time (``benchmarks.nova``; placement with two workers on
# two cores).
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
    """The tasks of one call, and what is learned of their consumers.

    :ivar unsure: consumers for which a call got no answer
    :ivar refusals: consumer -> why the service refused its last call
    """

    def __init__(self, tasks: Sequence[ClaimTask]) -> None:
        self.tasks = tasks
        self.unsure: set[str] = set()
        self.refusals: dict[str, str] = {}


class PlacementQueue:
    """Tasks in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[ClaimTask] = deque()
        self._busy: set[str] = set()
        self._under_way: set[Call] = set()
        self._stopping = False

    def put(self, tasks: Sequence[ClaimTask]) -> None:
        """Add tasks, which go in one call as far as they fit."""
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify()

    def take(self) -> Call | None:
        """Wait for the tasks of a call, which is under way from then on.

        :meth:`done` has to follow.

        :return: None: no task waits, or none is given out any more
        """
        with self._changed:
            while self._waiting and not self._stopping:
                tasks, left_s = self._fitting()
                if tasks and left_s <= 0:
                    for task in tasks:
                        self._waiting.remove(task)
                        self._busy.update(task.hosts)
                    call = Call(tasks)
                    self._under_way.add(call)
                    # Others take the rest, or wait no more.
                    self._changed.notify_all()
                    return call
                self._changed.wait(None if left_s == math.inf else left_s)
            return None

    def done(self, call: Call) -> None:
        """Note that a call ended; harmless if it did before.

        Its tasks need not be done: what follows an answer holds up no other
        call.
        """
        with self._changed:
            if call in self._under_way:
                self._under_way.remove(call)
                for task in call.tasks:
                    self._busy -= task.hosts.keys()
                self._changed.notify_all()

    def consumers(self) -> set[str]:
        """Return the consumers whose calls did not end yet."""
        with self._changed:
            tasks = [*self._waiting]
            for call in self._under_way:
                tasks += call.tasks
            return {each.consumer for one in tasks for each in one.allocations}

    def stop(self) -> None:
        """Give out no more tasks."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _fitting(self) -> tuple[list[ClaimTask], float]:
        """Return the tasks of the next call, and for how long it waits."""
        count, is_full = 0, False
        tasks: list[ClaimTask] = []
        for task in self._waiting:
            if count and count + len(task.allocations) > MOST_AT_ONCE:
                is_full = True
                break
            if self._busy.isdisjoint(task.hosts):
                tasks.append(task)
                count += len(task.allocations)
        if not tasks:
            return [], math.inf
        if is_full or count >= MOST_AT_ONCE or not self._under_way:
            return tasks, 0.0
        if count >= _MIN_BATCH and len(self._under_way) < _CALLS:
            return tasks, 0.0
        since = min(task.since for task in tasks)
        return tasks, since + _MAX_WAIT_S - time.monotonic()
