"""Work on threads that the end of the process does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar('T')


def start(work: Callable[[], T], name: str) -> Future[T]:
    """Run work on a daemon thread; return the future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as fault:
            future.set_exception(fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def run_within(seconds: float, work: Callable[[], T], name: str) -> T:
    """Return the result of work on a daemon thread.

    :raises TimeoutError: it takes longer, and goes on
    """
    return start(work, name).result(seconds)
