"""Tells systemd that the engine is alive, for as long as it is.

Owns the thread that does so. It stops telling when the engine stands still:
then systemd ends the process, and starts another one.
"""

from __future__ import annotations

import logging
import os
import threading

from scheduler_service.cmd.signals import notify
from scheduler_service.introspection import Introspection

LOG = logging.getLogger(__name__)
# How often the engine is looked at, in seconds; more often where systemd
# waits for less than four times as long.
_INTERVAL_S = 2.0


def limit_s() -> float | None:
    """Return within which time systemd wants to hear of this process.

    :return: in seconds; None where it does not
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
        """Say nothing any more: systemd knows that the process stops."""
        self._stopping.set()

    def _run(self) -> None:
        interval = min(_INTERVAL_S, self._limit / 4)
        said = False
        while True:
            still = self._introspection.stalled_for()
            if still < self._limit / 2:
                notify('WATCHDOG=1')
                said = False
            elif not said:
                LOG.error(
                    'The engine stands still for %.0f s; unless it moves, '
                    'systemd is going to end the process. SIGUSR2 shows '
                    'where it is',
                    still,
                )
                said = True
            if self._stopping.wait(interval):
                return
