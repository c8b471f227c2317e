"""Handlers of signals, notifications to systemd, and its watchdog."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger(__name__)
# How long notifying systemd may take, in seconds.
_NOTIFY_S = 2.0
# How often the engine is checked for the watchdog, in seconds; at least four
# times within systemd's limit.
_CHECK_S = 2.0


class StopSignal:
    """Set when the process has to stop.

    Unlike an event, it may be set by a signal handler: the handler runs on
    the main thread, which may hold the lock of the event that it waits for.

    :param same_s: signals within this time count as one, in seconds: some
        programs signal a process, and then its process group
    """

    def __init__(self, same_s: float = 0.5) -> None:
        self._same_s = same_s
        self._set = False
        self._since = 0.0
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._set

    def was_set_before(self) -> bool:
        """Whether it was set more than *same_s* ago."""
        return self._set and time.monotonic() - self._since > self._same_s

    def set(self) -> None:
        """Set it, and wake up the main thread."""
        if not self._set:
            self._since = time.monotonic()
        self._set = True
        self._wakeups.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or for some seconds."""
        if not self._set:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=seconds)


class SignalWorker:
    """A thread that does some work after each signal.

    A signal handler may interrupt the main thread anywhere, also while it
    holds the log's lock: so the handler only puts a request into a queue.
    Signals that come before the work begins count as one.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True
        )

    def request(self, *_: Any) -> None:
        """Request the work, as a handler of signals."""
        self._requests.put(None)

    def start(self) -> None:
        """Start the thread, which handles earlier requests as well."""
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._requests.get()
            while not self._requests.empty():
                self._requests.get()
            try:
                self._work()
            except Exception:
                LOG.exception('Handling a signal failed')


def notify(state: str) -> None:
    """Send a state to systemd, if it started us with ``Type=notify``."""
    address = os.environ.get('NOTIFY_SOCKET')
    if not address:
        return
    if address.startswith('@'):
        address = '\0' + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        # A slow receiver must not block the daemon.
        sock.settimeout(_NOTIFY_S)
        try:
            sock.connect(address)
            sock.sendall(state.encode())
        except OSError as fault:
            LOG.warning('Notifying systemd of %s failed: %s', state, fault)


def feed_watchdog(
    stalled_for: Callable[[], float], stopping: threading.Event
) -> None:
    """Feed systemd's watchdog on a thread, if there is one.

    The thread pauses while the engine stands still: systemd then ends the
    process, and starts another.

    :param stalled_for: returns for how many seconds the engine stands still
    :param stopping: ends the thread
    """
    try:
        limit = int(os.environ.get('WATCHDOG_USEC', '')) / 1e6
        pid = int(os.environ.get('WATCHDOG_PID', os.getpid()))
    except ValueError:
        return
    if limit <= 0 or pid != os.getpid():
        return

    def run() -> None:
        logged = False
        while True:
            still = stalled_for()
            if still < limit / 2:
                notify('WATCHDOG=1')
                logged = False
            elif not logged:
                LOG.error(
                    'The engine stands still for %.0f s; unless it moves, '
                    'systemd is going to end the process. SIGUSR2 shows '
                    'where it is',
                    still,
                )
                logged = True
            if stopping.wait(min(_CHECK_S, limit / 4)):
                return

    threading.Thread(target=run, name='watchdog', daemon=True).start()
