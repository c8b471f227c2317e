"""Jobs: what the engine decides, each with the future of its result.

A job is made by :class:`~scheduler_service.engine.scheduler.Scheduler` in
the caller's thread. From then on it belongs to the engine's thread, or to
the extender threads while it waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from scheduler_service.engine.request_context import RequestContext
from scheduler_service.model import Request, ZoneRequest
from scheduler_service.pipeline import Bonuses
from scheduler_service.store.connection import Writer


class BatchItem:
    """The result of one job of many, in place of a future of its own.

    Nobody waits for it alone, so it needs no lock.

    :param on_done: is called once, when the result is set
    """

    __slots__ = ('_error', '_on_done', '_result')

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done: Callable[[], None] | None = on_done
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the result or an error is set."""
        return self._on_done is None

    def set_result(self, result: Any) -> None:
        """Set the result."""
        self._result = result
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        """Set an error."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done()

    def result(self) -> Any:
        """Return the result."""
        return self._result

    def exception(self) -> BaseException | None:
        """Return the error, None where there is none."""
        return self._error


class BatchFuture:
    """The results of jobs that came together.

    :ivar whole: a future of all items, done when each of them is
    :ivar each: one item for each job
    """

    def __init__(self, count: int) -> None:
        self.whole: Future[list[BatchItem]] = Future()
        self.each = [BatchItem(self._count_one) for _ in range(count)]
        self._all_but_one = iter(range(count - 1))
        if not count:
            self.whole.set_result([])

    def _count_one(self) -> None:
        # next() on a built-in iterator is atomic: exactly one call is last.
        if next(self._all_but_one, None) is None:
            each, self.each = self.each, []
            self.whole.set_result(each)


class Job(msgspec.Struct, eq=False):
    """Something to decide, and the future of its result.

    :ivar deadline: monotonic time after which nobody waits for the result;
        None: there is none
    :ivar attempts: how often its claim was lost to another
    :ivar isolated: whether it has to be decided in a batch of its own
    :ivar queued_at: monotonic time at which it was made
    """

    future: Future[Any] | BatchItem = msgspec.field(default_factory=Future)
    deadline: float | None = None
    attempts: int = 0
    isolated: bool = False
    queued_at: float = msgspec.field(default_factory=time.monotonic)

    def expired(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def finish(self, result: Any) -> None:
        """Set the result, unless the job has one."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set an error, unless the job has a result."""
        if not self.future.done():
            self.future.set_exception(error)


class HostJob(Job, eq=False, kw_only=True):
    """Hosts for the instances of a request.

    :ivar claim: whether to claim them; else it only says what would happen
    :ivar explain: whether the result carries the reasons
    :ivar move: whether the instances keep the places that they have
    :ivar extender_scores: what extenders said, None while they are to be
        asked
    :ivar extender_rounds: how often they were asked
    :ivar excluded_hosts: hosts that an extender could not bind
    """

    request: Request
    claim: bool = True
    explain: bool = False
    move: bool = False
    extender_scores: Bonuses | None = None
    extender_rounds: int = 0
    excluded_hosts: set[str] = msgspec.field(default_factory=set)

    @property
    def batchable(self) -> bool:
        """Whether it may share a batch that is claimed in portions."""
        return not (self.move or self.isolated)


class ExplainJob(Job, eq=False, kw_only=True):
    """What every filter says of the hosts, or of one host.

    :ivar host: a service host to report on; None: only counts
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
    """A change of claims that exist: release, confirm, drop a move.

    :ivar work: does it in a writing transaction, which may be repeated
    """

    work: Callable[[Writer], Any]
