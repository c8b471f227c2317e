"""Stores decisions with their reasons, in bulk and off the request path.

Owns the queue of decisions and the thread that writes them. The engine's
thread and the extenders' threads add to the queue, which is a deque and needs
no lock. The same thread prunes old decisions, old entries of the change feed,
old outcomes of requests and old entries of the quarantine.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from scheduler_service import errors
from scheduler_service.store import clock
from scheduler_service.store.claims import outcomes
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.reading import change_feed
from scheduler_service.store.records import decisions, quarantine
from scheduler_service.store.records.decisions import Decision

LOG = logging.getLogger(__name__)
_INTERVAL_S = 0.2
# Decisions that wait while the database is unreachable.
_MAX_WAITING = 20_000
_PER_TRANSACTION = 500
# Old decisions are pruned after at most so many new ones.
_PRUNE_AFTER = 5_000
_PRUNE_STEP = 1_000
_PRUNE_CHANGES_EVERY_S = 60.0
# A daemon that was away for longer than this reloads its snapshot.
_CHANGES_KEPT_S = 3600.0


class DecisionRecorder:
    """A thread that stores decisions.

    Decisions wait while the database is unreachable. Where more than 20,000
    wait, the oldest are dropped.

    :ivar keep: how many decisions the store keeps; 0: store none
    :ivar outcome_retention: seconds for which outcomes are kept
    :ivar max_age: seconds for which decisions are kept; 0: for ever
    """

    def __init__(
        self,
        store: Store,
        keep: int,
        outcome_retention: float = 86_400.0,
        max_age: float = 0.0,
    ) -> None:
        self._store = store
        self.outcome_retention = outcome_retention
        self.keep = keep
        self.max_age = max_age
        self._stored_since_pruning = 0
        self._waiting: collections.deque[Decision] = collections.deque(
            maxlen=_MAX_WAITING
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name='decision-recorder', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, decision: Decision) -> None:
        """Have a decision stored soon."""
        if self.keep:
            self._waiting.append(decision)

    def stop(self, timeout: float) -> None:
        """Store what waits and end the thread.

        :param timeout: seconds to wait for it
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def flush(self) -> None:
        """Store what waits, in the caller's thread.

        :raises StoreUnavailable: the database does not answer; what is not
            stored yet goes on waiting
        """
        while self._waiting:
            count = min(_PER_TRANSACTION, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            try:
                self._store.write(self._storing(batch))
            except errors.StoreUnavailable:
                self._waiting.extendleft(reversed(batch))
                raise
            self._prune_decisions()

    def _storing(self, batch: list[Decision]) -> Callable[[Writer], None]:
        """Return the work that stores decisions."""
        self._stored_since_pruning += len(batch)

        def work(writer: Writer) -> None:
            decisions.record(writer, batch)

        return work

    def _prune_decisions(self) -> None:
        """Delete what is beyond the number and the age that are kept.

        In small steps, each a transaction: claims wait for none of them.
        """
        if self._stored_since_pruning > min(_PRUNE_AFTER, self.keep // 10):
            self._stored_since_pruning = 0
            self._repeat(partial(decisions.prune, keep=self.keep))

    def _prune_by_age(self) -> None:
        if self.max_age:
            with self._store.reading() as conn:
                before = clock.read(conn) - self.max_age
            self._repeat(partial(decisions.purge, before=before))

    def _repeat(self, delete: Callable[..., int]) -> None:
        """Call *delete* in transactions until it finds nothing to delete."""
        while not self._stopping.is_set():
            if not self._store.write(
                lambda writer: delete(writer, most=_PRUNE_STEP)
            ):
                return

    def _run(self) -> None:
        pruned_at = time.monotonic()
        while not self._stopping.wait(_INTERVAL_S):
            self._attempt(self.flush)
            if time.monotonic() - pruned_at > _PRUNE_CHANGES_EVERY_S:
                pruned_at = time.monotonic()
                self._attempt(self._prune_changes)
                self._attempt(self._prune_by_age)
        self._attempt(self.flush)

    def _prune_changes(self) -> None:
        """Prune changes that every daemon has read, and old outcomes."""

        def work(writer: Writer) -> None:
            change_feed.prune(writer.conn, _CHANGES_KEPT_S)
            quarantine.prune(writer, _CHANGES_KEPT_S)
            outcomes.prune(writer, self.outcome_retention)

        self._store.write(work)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except errors.StoreUnavailable:
            # The engine's thread logs that the database is unreachable.
            LOG.debug('Decisions wait until the database is reachable')
        except Exception:
            LOG.exception('Decisions could not be stored')
