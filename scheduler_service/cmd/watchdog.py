"""Feeds systemd's watchdog while the engine is alive.

A thread notifies systemd. It stops when the engine stands still: systemd then
ends the process, and starts another.
"""

from __future__ import annotations

import logging
import os
import threading

from scheduler_service.cmd.signals import notify
from scheduler_service.introspection import Introspection

LOG = logging.getLogger(__name__)
# How often the engine is checked, in seconds; at least four times within
# systemd's limit.
_INTERVAL_S = 2.0


def limit_s() -> float | None:
    """Return the limit of systemd's watchdog for this process.

    :return: in seconds; None: there is no watchdog
    """
    try:
        limit_us = int(os.environ.get('WATCHDOG_USEC', ''))
        pid = int(os.environ.get('WATCHDOG_PID', os.getpid()))
    except ValueError:
        return None
    return limit_us / 1e6 if limit_us > 0 and pid == os.getpid() else None


class Watchdog:
    """A thread that feeds the watchdog while the engine moves.

    :param limit: seconds after which systemd ends the process
    """

    def __init__(self, introspection: Introspection, limit: float) -> None:
        self._introspection = introspection
        self._limit = limit
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name='watchdog', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; systemd knows that the process stops."""
        self._stopping.set()

    def _run(self) -> None:
        interval = min(_INTERVAL_S, self._limit / 4)
        logged = False
        while True:
            still = self._introspection.stalled_for()
            if still < self._limit / 2:
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
            if self._stopping.wait(interval):
                return
