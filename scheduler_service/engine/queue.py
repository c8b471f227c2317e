"""The queue of jobs that wait for the engine, bounded.

Any thread puts jobs; the engine's thread takes them.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob, Job

# Long enough for another thread to run, in seconds.
_YIELD_S = 0.00001


class RequestQueue:
    """Jobs in the order in which they came.

    :param size: how many may wait; one more is refused
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: collections.deque[Job] = collections.deque()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def closed(self) -> bool:
        """Whether no more jobs are accepted."""
        return self._closed

    def put(self, job: Job) -> None:
        """Add a job.

        :raises ServiceBusy: too many wait, or the service stops
        """
        with self._changed:
            if self._closed or len(self._jobs) >= self._size:
                raise self._busy()
            self._jobs.append(job)
            self._changed.notify()
        # The job is more urgent than whatever this thread does next.
        time.sleep(_YIELD_S)

    def put_all(self, jobs: Sequence[Job]) -> None:
        """Add jobs that came together, to be decided together.

        Those that do not fit, or come while the service stops, fail.
        """
        with self._changed:
            room = 0 if self._closed else max(0, self._size - len(self))
            self._jobs.extend(jobs[:room])
            self._changed.notify()
        for job in jobs[room:]:
            job.fail(self._busy())
        time.sleep(_YIELD_S)

    def _busy(self) -> errors.ServiceBusy:
        if self._closed:
            return errors.ServiceBusy('The service is stopping')
        return errors.ServiceBusy(
            f'{self._size} requests are queued already', waiting=self._size
        )

    def requeue(self, jobs: Sequence[Job]) -> None:
        """Put jobs that were taken before all others, in their order."""
        with self._changed:
            self._jobs.extendleft(reversed(jobs))
            self._changed.notify()

    def take(self, most: int, timeout: float) -> list[Job]:
        """Return up to *most* jobs, none if none comes within the timeout.

        An isolated job comes in a batch of its own.

        :param timeout: in seconds
        """
        with self._changed:
            if not self._jobs and not self._closed:
                self._changed.wait(timeout)
            taken: list[Job] = []
            while self._jobs and len(taken) < most:
                if self._jobs[0].isolated and taken:
                    break
                taken.append(self._jobs.popleft())
                if taken[0].isolated:
                    break
            return taken

    def take_batchable(self, most: int) -> list[HostJob]:
        """Return the batchable host jobs first in line, without waiting."""
        with self._changed:
            taken: list[HostJob] = []
            while len(taken) < most and self._jobs:
                job = self._jobs[0]
                if not (isinstance(job, HostJob) and job.batchable):
                    break
                self._jobs.popleft()
                taken.append(job)
            return taken

    def close(self) -> None:
        """Accept no more jobs; those inside are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
