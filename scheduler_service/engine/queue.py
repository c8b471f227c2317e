"""What waits for the engine: a bounded queue of jobs."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.model import Request, ZoneRequest
from scheduler_service.pipeline import Advice
from scheduler_service.store.connection import Writer

# Long enough for another thread to go on, in seconds.
_TURN_S = 0.00001


class BatchItem:
    """The answer to one of many jobs, in place of a future of its own.

    Nobody waits for it alone, so that it needs no lock.

    :param there: is called once, when it is there
    """

    __slots__ = ('_fault', '_result', '_there')

    def __init__(self, there: Callable[[], None]) -> None:
        self._there: Callable[[], None] | None = there
        self._result: Any = None
        self._fault: BaseException | None = None

    def done(self) -> bool:
        """Whether it is there."""
        return self._there is None

    def set_result(self, result: Any) -> None:
        """Give the result."""
        self._result = result
        self._tell()

    def set_exception(self, fault: BaseException) -> None:
        """Give an error."""
        self._fault = fault
        self._tell()

    def _tell(self) -> None:
        there, self._there = self._there, None
        if there is not None:
            there()

    def result(self) -> Any:
        """Return the result."""
        return self._result

    def exception(self) -> BaseException | None:
        """Return the error, None where there is none."""
        return self._fault


class BatchFuture:
    """The answers to jobs that came together.

    :ivar whole: a future of all of them, done when each is
    :ivar each: one for each job
    """

    def __init__(self, count: int) -> None:
        self.whole: Future[list[BatchItem]] = Future()
        self.each = [BatchItem(self._one_more) for _ in range(count)]
        self._all_but_one = iter(range(count - 1))
        if not count:
            self.whole.set_result([])

    def _one_more(self) -> None:
        # next() on a built-in iterator is atomic: exactly one call is last.
        if next(self._all_but_one, None) is None:
            each, self.each = self.each, []
            self.whole.set_result(each)


class Job(msgspec.Struct, eq=False):
    """Something to decide, and the future that gets the answer.

    :ivar deadline: monotonic time after which nobody waits any more; None:
        somebody always does
    :ivar attempts: how often its claim was lost to another
    :ivar alone: whether it is to be decided without others beside it
    :ivar since: monotonic time since which it waits
    """

    future: Future[Any] | BatchItem = msgspec.field(default_factory=Future)
    deadline: float | None = None
    attempts: int = 0
    alone: bool = False
    since: float = msgspec.field(default_factory=time.monotonic)

    def late(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def answer(self, result: Any) -> None:
        """Give the answer, unless the job was given up."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Give an error, unless the job was given up."""
        if not self.future.done():
            self.future.set_exception(error)


class HostJob(Job, eq=False, kw_only=True):
    """Hosts for the instances of a request.

    :ivar claim: whether to claim them; else it only says what would happen
    :ivar explain: whether the answer carries the reasons
    :ivar move: whether the instances stay where they are beside it
    :ivar advice: what extenders said, None while they are to be asked
    :ivar rounds: how often they were asked
    :ivar banned: hosts that could not be bound
    """

    request: Request
    claim: bool = True
    explain: bool = False
    move: bool = False
    advice: Advice | None = None
    rounds: int = 0
    banned: set[str] = msgspec.field(default_factory=set)

    @property
    def plain(self) -> bool:
        """Whether others may be claimed for before it and after it."""
        return not (self.move or self.alone or self.request.instance_group)


class ExplainJob(Job, eq=False, kw_only=True):
    """What every filter makes of the hosts, or of one host.

    :ivar host: a service host to report on; None: all in numbers
    """

    request: Request
    host: str | None = None


class ZoneJob(Job, eq=False, kw_only=True):
    """A pool for a zone.

    :ivar keep: whether to store it; else it only says what would happen
    """

    zone: ZoneRequest
    caller: RequestContext
    keep: bool = True
    explain: bool = False


class ClaimsJob(Job, eq=False, kw_only=True):
    """Something to be done to claims that are there.

    :ivar work: does it in a writing transaction; again where that has to be
    """

    work: Callable[[Writer], Any]


class RequestQueue:
    """Jobs in the order they came; one more than fits is refused."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: collections.deque[Job] = collections.deque()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def closed(self) -> bool:
        """Whether no more jobs are taken."""
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
        # Whoever puts has nothing to do that is more urgent than the job.
        time.sleep(_TURN_S)

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
        time.sleep(_TURN_S)

    def _busy(self) -> errors.ServiceBusy:
        if self._closed:
            return errors.ServiceBusy('The service is stopping')
        return errors.ServiceBusy(
            f'{self._size} requests wait already', waiting=self._size
        )

    def put_back(self, jobs: list[Job]) -> None:
        """Put jobs that were taken before all others, in their order."""
        with self._changed:
            self._jobs.extendleft(reversed(jobs))
            self._changed.notify()

    def take(self, most: int, wait: float) -> list[Job]:
        """Return up to *most* jobs, none if none comes for *wait* seconds.

        One that is to be alone comes alone.
        """
        with self._changed:
            if not self._jobs and not self._closed:
                self._changed.wait(wait)
            taken: list[Job] = []
            while self._jobs and len(taken) < most:
                if self._jobs[0].alone and taken:
                    break
                taken.append(self._jobs.popleft())
                if taken[0].alone:
                    break
            return taken

    def take_plain(self, most: int) -> list[HostJob]:
        """Return the plain jobs first in line, without waiting."""
        with self._changed:
            found: list[HostJob] = []
            while len(found) < most and self._jobs:
                job = self._jobs[0]
                if not (isinstance(job, HostJob) and job.plain):
                    break
                self._jobs.popleft()
                found.append(job)
            return found

    def close(self) -> None:
        """Take no more jobs; those inside are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
