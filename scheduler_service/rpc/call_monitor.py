"""Sends heartbeats to callers that wait for a reply.

A call may have a heartbeat timeout, shorter than its whole timeout. Its caller
gets a heartbeat after every half of that time, until the reply is sent or the
deadline has passed.

The monitor owns its thread, which waits for the bus, and its heap. Any thread
may call :meth:`CallMonitor.watch`. The monitor keeps only a weak reference to
a message.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
import weakref
from typing import Any

from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import is_late
from scheduler_service.rpc.incoming import deadline

LOG = logging.getLogger(__name__)
# The shortest interval between heartbeats, in seconds.
_SHORTEST_S = 0.5
# The longest interval, since waits of threads are limited.
_LONGEST_S = 3600.0


class CallMonitor:
    """A thread that sends heartbeats."""

    def __init__(self, health: Health) -> None:
        self._health = health
        # (due time, order, interval in seconds, message): a heap.
        self._due: list[tuple[float, int, float, Any]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name='call-monitor', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more heartbeats; the thread ends by itself."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def watch(self, message: Any) -> None:
        """Send heartbeats for a message, if its caller expects them."""
        timeout = getattr(message, 'client_timeout', None)
        if isinstance(timeout, int | float) and timeout > 0:
            interval = max(_SHORTEST_S, min(timeout, 2 * _LONGEST_S) / 2)
            self._schedule(interval, weakref.ref(message))

    def _schedule(self, interval: float, reference: Any) -> None:
        due = time.monotonic() + interval
        with self._changed:
            first = not self._due or due < self._due[0][0]
            entry = due, next(self._numbers), interval, reference
            heapq.heappush(self._due, entry)
            if first:
                self._changed.notify()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            _, _, interval, reference = entry
            if self._beat(reference()):
                self._schedule(interval, reference)

    def _next(self) -> Any:
        """Wait for the next due message; return None at the end."""
        with self._changed:
            while not self._stopping:
                if not self._due:
                    self._changed.wait()
                    continue
                left = self._due[0][0] - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self._due)
                self._changed.wait(left)
        return None

    def _beat(self, message: Any) -> bool:
        """Send a heartbeat; return whether another is to follow.

        :param message: None: the message no longer exists
        """
        # Only our drivers show whether the message has its reply.
        if message is None or getattr(message, 'settled', False):
            return False
        if is_late(deadline(message)):
            return False
        try:
            message.heartbeat()
        except Exception as fault:
            # The next heartbeat may arrive in time.
            LOG.info('A heartbeat was not delivered: %s', fault)
            self._health.count('call_heartbeats', 'failed')
        else:
            self._health.count('call_heartbeats', 'sent')
        return True
