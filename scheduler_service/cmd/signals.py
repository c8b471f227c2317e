"""What stops the process, and what tells systemd of its state."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket

LOG = logging.getLogger(__name__)


class StopSignal:
    """Whether the process was told to stop.

    Unlike an event it may be set by a signal handler: that runs on the main
    thread, which may have the lock of the event that it waits for.
    """

    def __init__(self) -> None:
        self._set = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set

    def set(self) -> None:
        """Set it, and wake up the main thread."""
        self._set = True
        self._wakeups.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or for some seconds."""
        if not self._set:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=seconds)


def notify(state: str) -> None:
    """Send a state to systemd, if it started us with ``Type=notify``."""
    address = os.environ.get('NOTIFY_SOCKET')
    if not address:
        return
    if address.startswith('@'):
        address = '\0' + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(address)
            sock.sendall(state.encode())
        except OSError as fault:
            LOG.warning('Notifying systemd of %s failed: %s', state, fault)
