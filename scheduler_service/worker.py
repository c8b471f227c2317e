"""A thread with work of its own, from its start to its end."""

from __future__ import annotations

import abc
import threading


class Worker(abc.ABC):
    """A thread that works until it is stopped.

    :param name: of the thread, as logs and debuggers show it
    """

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True
        )

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
        """Work until ``_stopping`` is set."""
