"""Threads with work of their own, from their start to their end."""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar('T')
# Called with the name of a thread, and with what its work raised.
OnEnd = Callable[[str, BaseException], None]
LOG = logging.getLogger(__name__)
# The pause of a thread before it starts again, in seconds.
_PAUSE_S = 1.0


def new_thread(
    name: str,
    work: Callable[[], None],
    on_end: OnEnd | None = None,
    wait: Callable[[float], Any] = time.sleep,
) -> threading.Thread:
    """Return a thread, not started yet, that works until the work returns.

    Whatever the work raises is logged, and the work starts again after a
    pause.

    :param wait: waits for some seconds; returns true where the thread is to
        end
    """

    def run() -> None:
        while True:
            try:
                return work()
            except BaseException as fault:
                LOG.critical('Thread %s failed', name, exc_info=fault)
                if on_end is not None:
                    on_end(name, fault)
            if wait(_PAUSE_S):
                return

    return threading.Thread(target=run, name=name, daemon=True)


def start_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run work on a daemon thread; return the future of its result.

    The process does not join the thread at its end.
    """
    from concurrent.futures import Future

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as fault:
            future.set_exception(fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Worker(abc.ABC):
    """A thread that works until it is stopped.

    :param name: of the thread, as logs and debuggers show it
    :param on_end: called where its work raised anything
    """

    def __init__(self, name: str, on_end: OnEnd | None = None) -> None:
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = new_thread(name, self._run, on_end, self._stopping.wait)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the thread's pause, or the next one if it is at work."""
        self._woken.set()

    def stop(self, timeout: float) -> bool:
        """End the thread after the work that it is doing.

        :param timeout: seconds to wait for it
        :return: whether it ended in time
        """
        self._stopping.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _pause(self, seconds: float) -> None:
        """Wait for that long, or until the thread is woken."""
        self._woken.wait(seconds)
        self._woken.clear()

    @abc.abstractmethod
    def _run(self) -> None:
        """Work until ``_stopping`` is set; started again where it raises."""
