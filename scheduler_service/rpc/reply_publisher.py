"""Publishes replies on threads of its own, where sending may block.

The publisher owns its threads, its queue, and the lines of replies whose
destination refuses them; any thread may add a delivery.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import threading
import time
from typing import Any, NamedTuple, Protocol

import oslo_messaging
from oslo_messaging._drivers import amqp

from scheduler_service.engine.health import Health

LOG = logging.getLogger(__name__)
# The first and the longest delay before a destination that refused a reply is
# tried again, in seconds; the delay doubles.
_RETRY_S = 0.25
_MAX_RETRY_S = 2.0
# Destinations that are tried again in a second, in all. An attempt takes some
# 3 ms of the daemon's time.
_MAX_RETRIES_A_SECOND = 200
_GIVE_UP_S = 60.0
_STUCK_S = 2.0
# Replies that may wait for a destination; further replies are dropped.
_MAX_LINE = 100
_FULL_LINE = f'{_MAX_LINE} replies wait for it already'
# Waiting replies that may keep their messages unacknowledged: these count
# against the prefetch of the daemon.
_MAX_UNACKNOWLEDGED = 16
# The queue is missing, or it is full and refuses.
_UNDELIVERABLE = (
    oslo_messaging.MessageUndeliverable,
    amqp.AMQPDestinationNotFound,
)


class Deliverable(Protocol):
    """A reply to deliver."""

    @property
    def destination(self) -> str | None:
        """The destination of its next step; None: unknown."""

    def __call__(self) -> None:
        """Deliver the reply."""

    def acknowledge(self) -> None:
        """Acknowledge its message, once."""

    def abandon(self) -> None:
        """Acknowledge its message without a reply."""


class _Waiting(NamedTuple):
    """A delivery, with the monotonic time at which it is dropped."""

    delivery: Deliverable
    give_up: float


class _Line:
    """Replies for a destination that refuses them at the moment.

    One reply at a time is tried. The line is due in the publisher's heap, or
    its first reply is with a thread.

    :ivar delay: seconds until the next attempt
    """

    __slots__ = ('delay', 'key', 'waiting')

    def __init__(self, key: Any) -> None:
        self.key = key
        self.delay = _RETRY_S
        self.waiting: collections.deque[_Waiting] = collections.deque()


class ReplyPublisher:
    """Runs deliveries, and repeats those that their destination refuses.

    After a restart of the broker a caller has to declare its reply queue
    again, and a full queue may be emptied, so a delivery is repeated for a
    minute. Other destinations are not delayed: deliveries for the same
    destination wait in a line, of which one at a time is tried, ever more
    rarely. Threads alternate between new deliveries and lines.
    """

    def __init__(self, health: Health, threads: int = 2) -> None:
        self._health = health
        self._tasks: collections.deque[_Waiting] = collections.deque()
        self._lines: dict[Any, _Line] = {}
        # (time of the next attempt, order, line), a heap.
        self._due: list[tuple[float, int, _Line]] = []
        self._numbers = itertools.count()
        # Notified when a thread may have work, or has to wait for less long.
        self._changed = threading.Condition(threading.Lock())
        self._ending = self._retried = False
        self._waiting = self._in_lines = 0
        self._started: dict[int, float] = {}
        self._threads = [
            threading.Thread(
                target=self._run, name=f'reply-{number}', daemon=True
            )
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, delivery: Deliverable, refused: bool = False) -> None:
        """Queue a delivery for the next free thread.

        If others wait for its destination, the delivery waits behind them.

        :param refused: whether the destination refused a reply a moment ago,
            which counts as the first attempt
        """
        task = _Waiting(delivery, time.monotonic() + _GIVE_UP_S)
        with self._changed:
            self._waiting += 1
            key = _key(delivery)
            line = self._lines.get(key)
            if line is not None:
                dropped = self._append(line, task)
            elif refused:
                dropped = self._put_back(_Line(key), task)
            else:
                self._tasks.append(task)
                self._changed.notify()
                return
        self._settle(task, dropped, _FULL_LINE)

    def check_health(self) -> None:
        """Report to health whether a delivery hangs."""
        oldest = min(list(self._started.values()), default=None)
        stuck = oldest is not None and time.monotonic() - oldest > _STUCK_S
        if stuck:
            text = (
                f'the broker accepts no replies, {self._waiting} are waiting'
            )
            self._health.degrade('replies', text, 'Replies are sent again')
        else:
            self._health.recover('replies')

    def stop(self, timeout: float) -> bool:
        """Deliver waiting replies, then end the threads.

        For replies whose queues are missing or full the wait is short:
        another daemon sends them, if their messages are not acknowledged.

        :param timeout: seconds
        :return: whether all replies were delivered
        """
        start = time.monotonic()
        deadline = start + timeout
        while self._waiting and time.monotonic() < deadline:
            only_lines = self._waiting <= self._in_lines
            if only_lines and time.monotonic() - start > _STUCK_S:
                break
            time.sleep(0.01)
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        return not self._waiting

    def _run(self) -> None:
        while (task := self._next()) is not None:
            self._deliver(*task)

    def _next(self) -> tuple[_Waiting, _Line | None] | None:
        """Wait for a delivery; return it and its line; None at the end."""
        with self._changed:
            while True:
                due = self._due[0][0] if self._due else None
                left = None if due is None else due - time.monotonic()
                is_due = left is not None and left <= 0.0
                if is_due and not (self._tasks and self._retried):
                    self._retried = True
                    line = heapq.heappop(self._due)[2]
                    self._in_lines -= 1
                    return line.waiting.popleft(), line
                if self._tasks:
                    self._retried = False
                    return self._tasks.popleft(), None
                if self._ending:
                    return None
                self._changed.wait(left)

    def _deliver(self, task: _Waiting, line: _Line | None) -> None:
        """Run a delivery.

        :param line: from which it was taken; None: it is new
        """
        started = time.monotonic()
        me = threading.get_ident()
        self._started[me] = started
        try:
            task.delivery()
        except _UNDELIVERABLE as error:
            self._wait_in_line(task, line, error)
            return
        except Exception:
            LOG.exception('Dropped a reply that could not be sent')
            task.delivery.abandon()
        finally:
            self._started.pop(me, None)
        self._health.time('reply', time.monotonic() - started)
        self._go_on(line)
        self._count_done()

    def _wait_in_line(
        self, task: _Waiting, line: _Line | None, error: Exception
    ) -> None:
        """Put a delivery that failed into the line of its destination."""
        key = _key(task.delivery)
        if line is not None and line.key != key:
            # The step that it waited for is done; its next step failed.
            self._go_on(line)
            line = None
        why = f'it was missing or full for {_GIVE_UP_S:.0f} s: {error}'
        with self._changed:
            if line is None and key in self._lines:
                dropped = self._append(self._lines[key], task)
                why = _FULL_LINE
            else:
                dropped = self._put_back(line or _Line(key), task)
        self._settle(task, dropped, why)

    def _append(self, line: _Line, task: _Waiting) -> list[_Waiting]:
        """Append a delivery to a line; return it if it has to be dropped.

        The caller holds the lock, as for all changes of lines.
        """
        if len(line.waiting) >= _MAX_LINE:
            return [task]
        line.waiting.append(task)
        self._in_lines += 1
        return []

    def _put_back(self, line: _Line, task: _Waiting) -> list[_Waiting]:
        """Put a delivery at the head of its line; return expired ones."""
        if line.key in self._lines:
            line.delay = min(2 * line.delay, _MAX_RETRY_S)
        self._lines[line.key] = line
        line.delay = max(line.delay, len(self._lines) / _MAX_RETRIES_A_SECOND)
        line.waiting.appendleft(task)
        self._in_lines += 1
        dropped = self._expired(line)
        self._schedule(line, line.delay)
        return dropped

    def _settle(
        self, task: _Waiting, dropped: list[_Waiting], why: str
    ) -> None:
        """Drop deliveries, or acknowledge a delivery that waits with many.

        Its work is done, and the prefetch is for messages in progress.
        """
        self._drop(dropped, why)
        if not dropped and self._in_lines > _MAX_UNACKNOWLEDGED:
            task.delivery.acknowledge()

    def _expired(self, line: _Line) -> list[_Waiting]:
        """Remove expired deliveries from a line; return them."""
        now = time.monotonic()
        dropped = []
        while line.waiting and line.waiting[0].give_up <= now:
            dropped.append(line.waiting.popleft())
        self._in_lines -= len(dropped)
        return dropped

    def _go_on(self, line: _Line | None) -> None:
        """Try the next delivery of a line at once."""
        if line is None:
            return
        with self._changed:
            line.delay = _RETRY_S
            self._schedule(line, 0.0)

    def _schedule(self, line: _Line, delay: float) -> None:
        """Try a line again after some seconds; drop an empty line."""
        if line.waiting:
            entry = time.monotonic() + delay, next(self._numbers), line
            heapq.heappush(self._due, entry)
            # Notify all: a single thread may hang in a delivery by then.
            self._changed.notify_all()
        else:
            self._lines.pop(line.key, None)

    def _drop(self, tasks: list[_Waiting], why: str) -> None:
        for task in tasks:
            LOG.warning(
                'Dropped a reply to queue %s, %s',
                task.delivery.destination,
                why,
            )
            task.delivery.abandon()
            self._count_done()

    def _count_done(self) -> None:
        with self._changed:
            self._waiting -= 1


def _key(delivery: Deliverable) -> Any:
    """Return the key of a delivery's line."""
    return delivery.destination or delivery
