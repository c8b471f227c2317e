"""Futures of the engine: of one result, and of the results of many jobs.

The engine's threads set them, and the threads of the callers wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class RequestReturned(Exception):
    """The request was not decided: it goes back to the message bus."""


class ReplyFuture(Future[Any]):
    """The result of a request.

    :ivar returnable: whether whoever waits can give the request to another
        daemon, and so takes :class:`RequestReturned` for a result
    """

    returnable = False


class BatchItem:
    """The result of one job of many, in place of a future of its own.

    Nobody waits for it alone, so it needs no lock.

    :param whole: the future of all items
    :param on_done: is called once, when the result is set
    """

    __slots__ = ('_error', '_on_done', '_result', '_whole')

    def __init__(
        self, whole: ReplyFuture, on_done: Callable[[], None]
    ) -> None:
        self._whole: ReplyFuture | None = whole
        self._on_done: Callable[[], None] | None = on_done
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def returnable(self) -> bool:
        """Whether the request of all items can go to another daemon."""
        return self._whole is not None and self._whole.returnable

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
        # The future holds its items: that would be a reference cycle.
        self._whole = None
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

    :ivar whole: a future of all items, done when each of them is; it fails
        with RequestReturned where one of them did
    :ivar each: one item for each job
    """

    def __init__(self, count: int) -> None:
        self.whole = ReplyFuture()
        self.each = [
            BatchItem(self.whole, self._count_one) for _ in range(count)
        ]
        self._all_but_one = iter(range(count - 1))
        if not count:
            self.whole.set_result([])

    def _count_one(self) -> None:
        # next() on a built-in iterator is atomic: exactly one call is last.
        if next(self._all_but_one, None) is None:
            each, self.each = self.each, []
            for item in each:
                if isinstance(item.exception(), RequestReturned):
                    self.whole.set_exception(RequestReturned())
                    return
            self.whole.set_result(each)
