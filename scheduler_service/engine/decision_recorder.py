"""Writes decisions down, in bulk and off the way of requests.

The same thread forgets old changes of the store now and then.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable

from scheduler_service import errors
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.reading import change_feed
from scheduler_service.store.records import decisions, quarantine
from scheduler_service.store.records.decisions import Decision

LOG = logging.getLogger(__name__)
_WAITING = 20_000
_TOGETHER = 500
_PAUSE_S = 0.2
_FORGET_AFTER = 5_000
_TIDY_EVERY_S = 60.0
# A daemon that was away for longer loads everything anew.
_CHANGES_KEPT_S = 3600.0


class DecisionRecorder:
    """A thread that keeps decisions for whoever asks afterwards.

    While the database is away the newest wait; the oldest are let go when
    there are too many, and how many is said.

    :param keep: how many the store keeps; 0: none, and nothing is written
    """

    def __init__(self, store: Store, keep: int) -> None:
        self._store = store
        self._keep = keep
        self._since = 0
        self._waiting: collections.deque[Decision] = collections.deque(
            maxlen=_WAITING
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name='recorder', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, decision: Decision) -> None:
        """Keep a decision, soon."""
        if self._keep:
            self._waiting.append(decision)

    def stop(self, timeout: float) -> None:
        """Write what waits and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def flush(self) -> None:
        """Write what waits, now and in the caller's thread.

        :raises StoreUnavailable: the database does not answer
        """
        while self._waiting:
            count = min(_TOGETHER, len(self._waiting))
            some = [self._waiting.popleft() for _ in range(count)]
            try:
                self._store.write(self._writing(some))
            except errors.StoreUnavailable:
                self._waiting.extendleft(reversed(some))
                raise

    def _writing(self, some: list[Decision]) -> Callable[[Writer], None]:
        """Return the work that writes some down, and now and then forgets."""
        self._since += len(some)

        def work(writer: Writer) -> None:
            decisions.record(writer, some)
            if self._since > min(_FORGET_AFTER, self._keep // 10):
                decisions.prune(writer, self._keep)
                self._since = 0

        return work

    def _run(self) -> None:
        tidied = time.monotonic()
        while not self._stopping.wait(_PAUSE_S):
            self._try(self.flush)
            if time.monotonic() - tidied > _TIDY_EVERY_S:
                tidied = time.monotonic()
                self._try(self._tidy)
        self._try(self.flush)

    def _tidy(self) -> None:
        """Forget what every daemon has read or done long since."""
        before = time.time() - _CHANGES_KEPT_S

        def work(writer: Writer) -> None:
            change_feed.prune(writer.conn, before)
            quarantine.prune(writer, before)

        self._store.write(work)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except errors.StoreUnavailable:
            # The engine says that the database is away; once is enough.
            LOG.debug('Decisions wait for the database')
        except Exception:
            LOG.exception('Decisions could not be written down')
