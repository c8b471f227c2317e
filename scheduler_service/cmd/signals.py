"""Handlers of signals, notifications to systemd, and its watchdog."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)
# How long notifying systemd may take, in seconds.
_NOTIFY_S = 2.0
# How often the engine is checked for the watchdog, in seconds; at least four
# times within systemd's limit.
_CHECK_S = 2.0


def handle(
    number: signal.Signals, work: Callable[[], None], name: str
) -> threading.Thread:
    """Return a thread, not started yet, that does some work after a signal.

    A signal handler may interrupt the main thread anywhere, also while it
    holds the log's lock: so the handler only puts a request into a queue.
    """
    requests: queue.SimpleQueue[None] = queue.SimpleQueue()
    signal.signal(number, lambda *_: requests.put(None))

    def run() -> None:
        while True:
            requests.get()
            try:
                work()
            except Exception:
                LOG.exception('Handling a signal failed')

    return threading.Thread(target=run, name=name, daemon=True)


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
    limit = int(os.environ.get('WATCHDOG_USEC') or 0) / 1e6
    if not limit or os.environ.get('WATCHDOG_PID') not in (
        None, str(os.getpid()),
    ):  # fmt: skip
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
