"""Publishes replies on threads of its own, where sending may wait.

The publisher owns its threads and its queue; any thread may add a delivery
and ask for its state.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from typing import Any, Protocol

import oslo_messaging
from oslo_messaging._drivers import amqp

from scheduler_service.engine.health import Health

LOG = logging.getLogger(__name__)
_RETRY_S = 0.25
_GIVE_UP_S = 60.0
_STUCK_S = 2.0
_NO_SUCH_QUEUE = (
    oslo_messaging.MessageUndeliverable,
    amqp.AMQPDestinationNotFound,
)


class Deliverable(Protocol):
    """One reply on its way."""

    def __call__(self) -> None:
        """Deliver it."""

    def abandon(self) -> None:
        """Acknowledge its message without a reply."""


class ReplyPublisher:
    """Runs deliveries, and again where the destination does not exist.

    After a restart of the broker a caller has to declare its reply queue
    again, so a delivery is repeated for a minute. It does not hold up others.
    """

    def __init__(self, health: Health, threads: int = 2) -> None:
        self._health = health
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # (when to repeat, order, delivery, when to give up), a heap.
        self._repeats: list[tuple[float, int, Any, float]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting = 0
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

    def put(self, delivery: Deliverable) -> None:
        """Have a delivery run by the next thread that is free."""
        with self._lock:
            self._waiting += 1
        self._tasks.put((delivery, time.monotonic() + _GIVE_UP_S))

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
        """Deliver what waits, then end the threads.

        :param timeout: seconds
        :return: whether everything was delivered
        """
        deadline = time.monotonic() + timeout
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        return not self._waiting

    def _run(self) -> None:
        while True:
            task = self._next()
            if task is None:
                return
            if task:
                self._deliver(*task)

    def _next(self) -> Any:
        """Return the next task, None at the end, () where none is due."""
        with self._lock:
            due = self._repeats[0][0] if self._repeats else None
            if due is not None and due <= time.monotonic():
                _, _, delivery, give_up = heapq.heappop(self._repeats)
                return delivery, give_up
        wait = None if due is None else max(0.0, due - time.monotonic())
        try:
            return self._tasks.get(timeout=wait)
        except queue.Empty:
            return ()

    def _deliver(self, delivery: Deliverable, give_up: float) -> None:
        started = time.monotonic()
        me = threading.get_ident()
        self._started[me] = started
        try:
            delivery()
        except _NO_SUCH_QUEUE as error:
            now = time.monotonic()
            if now < give_up:
                entry = now + _RETRY_S, next(self._numbers), delivery, give_up
                with self._lock:
                    heapq.heappush(self._repeats, entry)
                return
            LOG.warning(
                'Dropped a reply, its queue was missing for %d s: %s',
                _GIVE_UP_S,
                error,
            )
            delivery.abandon()
        except Exception:
            LOG.exception('Dropped a reply that could not be sent')
            delivery.abandon()
        finally:
            self._started.pop(me, None)
        self._health.time('reply', time.monotonic() - started)
        with self._lock:
            self._waiting -= 1
