"""Threads with work of their own."""

from __future__ import annotations

import threading
import time

from scheduler_service.worker import Worker
from tests.support.waiting import LIMIT_S, SLOWNESS


class Counter(Worker):
    """Counts its turns, with a pause of a minute after each."""

    def __init__(self) -> None:
        super().__init__('counter')
        self.turns = 0
        self.turned = threading.Semaphore(0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turns += 1
            self.turned.release()
            self._pause(60)


def test_a_worker_that_is_woken_works_again_at_once() -> None:
    counter = Counter()
    counter.start()
    assert counter.turned.acquire(timeout=LIMIT_S)
    counter.wake()
    assert counter.turned.acquire(timeout=LIMIT_S)
    assert counter.stop(LIMIT_S)
    assert counter.turns == 2


def test_a_stop_ends_the_pause_of_a_worker() -> None:
    counter = Counter()
    counter.start()
    assert counter.turned.acquire(timeout=LIMIT_S)
    started = time.monotonic()
    assert counter.stop(LIMIT_S)
    assert time.monotonic() - started < 30 * SLOWNESS


def test_a_stop_says_that_a_worker_did_not_end_in_time() -> None:
    class Busy(Worker):
        def _run(self) -> None:
            self._stopping.wait()
            may_end.wait()

    may_end = threading.Event()
    busy = Busy('busy')
    busy.start()
    assert not busy.stop(0.01)
    may_end.set()
    assert busy.stop(LIMIT_S)


def test_a_worker_that_was_not_started_is_stopped() -> None:
    assert Counter().stop(LIMIT_S)
