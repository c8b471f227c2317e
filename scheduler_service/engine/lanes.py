"""The jobs of one caller, in the order in which they came."""

from __future__ import annotations

import collections
from collections.abc import Callable

from scheduler_service.engine.jobs import Job

# Says of so many requests that wait, for how long more of them may gather
# before they are taken, in seconds.
BatchingDelay = Callable[[int], float]


class Lane:
    """The jobs of one caller.

    :ivar served: what it was given, in instances; its place among others
    :ivar entry: number of its entry in the heap; others are out of date
    """

    __slots__ = ('entry', 'jobs', 'served')

    def __init__(self, served: float) -> None:
        self.jobs: collections.deque[Job] = collections.deque()
        self.served = served
        self.entry = -1
