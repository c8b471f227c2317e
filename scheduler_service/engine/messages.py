"""Messages that requests come with, and what becomes of their results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec

from scheduler_service import tracing
from scheduler_service.model.limits import NAME_LENGTH


class DeliveredMessage(msgspec.Struct, frozen=True):
    """The message that a job came with.

    :ivar id: of the message, the same with each delivery; empty: there is no
        message that can be delivered again
    :ivar redelivered: whether it was delivered before, to any daemon
    :ivar sent_at: seconds since the epoch at which it was sent, by the
        caller's clock; None: the caller did not say
    :ivar came_after: monotonic time at which it had not arrived; infinite:
        it is not known
    :ivar lane: of whoever sent it: callers get fair shares by it
    :ivar is_lost: says whether the connection that it came over is closed, so
        that the broker may have given it to another daemon
    :ivar trace: gets the stages of its requests; None: it is not traced
    :ivar context: of the caller, as it was sent
    """

    id: str = ''
    redelivered: bool = False
    sent_at: float | None = None
    lane: Hashable = ''
    is_lost: Callable[[], bool] = lambda: False
    context: Mapping[str, Any] = {}
    trace: tracing.Trace | None = None
    came_after: float = math.inf

    def sent_id(self, name: str = 'request_id') -> str | None:
        """Return an id that the caller's log knows the request by.

        :param name: or ``global_request_id``
        :return: None where there is none that can be kept
        """
        sent = self.context.get(name)
        if not sent or not isinstance(sent, str):
            return None
        fits = len(sent) <= NAME_LENGTH and sent.isprintable()
        return sent if fits else None

    def origin(self, request_id: str | None) -> tuple[str | None, str | None]:
        """Return the caller's ids that are kept beside an id of a request."""
        sent = self.sent_id()
        global_id = self.sent_id('global_request_id')
        return sent if sent != request_id else None, global_id

    def caller(self, request_id: Any = None) -> str:
        """Return who sent it, for the log.

        :param request_id: in the request; None: it has none
        """
        sent = self.context
        request, user, project = (
            str(of or '-')[:255]
            for of in (
                request_id or sent.get('request_id'),
                sent.get('user_id'),
                sent.get('project_id'),
            )
        )
        return f'request {request}, user {user}, project {project}'

    def key(self, entry: int = 0) -> str | None:
        """Return the idempotency key of an entry; None: there is none."""
        return f'{self.id}/{entry}' if self.id else None


NO_MESSAGE = DeliveredMessage()


def is_late(deadline: float | None) -> bool:
    """Whether a caller has stopped waiting: all that asks this asks here.

    :param deadline: monotonic time until which it waits; None: it does so
        for as long as it takes
    """
    return deadline is not None and time.monotonic() > deadline


class RequestReturned(Exception):
    """The request was not decided: it goes back to the message bus."""


class Unrecorded(NamedTuple):
    """What the store does not show of an outcome.

    :ivar key: idempotency key of the request
    :ivar instances: that it names, or whose claims have to be there still
    """

    key: str
    instances: Sequence[str]


class ReplyFuture(Future[Any]):
    """The result of a request.

    :ivar returnable: whether whoever waits can give the request to another
        daemon, and so takes :class:`RequestReturned` for a result
    :ivar unrecorded: of an outcome that no transaction recorded, of a message
        that may be delivered again; None: there is nothing to record
    """

    returnable = False
    unrecorded: Unrecorded | None = None


class BatchItem:
    """The result of one job of many, in place of a future of its own.

    Nobody waits for it alone, so it needs no lock.

    :param whole: the future of all items
    :param on_done: is called once, when the result is set
    :ivar unrecorded: as of :class:`ReplyFuture`
    """

    __slots__ = ('_error', '_on_done', '_result', '_whole', 'unrecorded')

    def __init__(
        self, whole: ReplyFuture, on_done: Callable[[], None]
    ) -> None:
        self._whole: ReplyFuture | None = whole
        self._on_done: Callable[[], None] | None = on_done
        self._result: Any = None
        self._error: BaseException | None = None
        self.unrecorded: Unrecorded | None = None

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
