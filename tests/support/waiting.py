"""Waiting for what another thread or process does: one limit for all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

# What has been measured once counts for the processes that are started, too.
_VARIABLE = 'SCHEDULER_TEST_SLOWNESS'
_MOST = 4.0
# A fixed piece of work, and its time on a common server with nothing else to
# do, all cores at once, of which two may be one: the middle one of several,
# since now and then one takes twice as long there.
_WORK = """
import time
def taken():
    start = time.perf_counter()
    sum(n * n for n in range(1_000_000))
    return time.perf_counter() - start
print(sorted(taken() for _ in range(5))[2])
"""
_USUAL_S = 0.08


def _measured() -> float:
    """Return how many times as long as usual this machine takes, 1 to 4.

    It works on all its cores at once: what else runs there takes its part.
    """
    started = [
        subprocess.Popen(
            [sys.executable, '-I', '-S', '-c', _WORK], stdout=subprocess.PIPE
        )
        for _ in range(os.cpu_count() or 1)
    ]
    taken_s = max(float(one.communicate()[0]) for one in started)
    return min(_MOST, max(1.0, taken_s / _USUAL_S))


if _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = f'{_measured():.2f}'
# How many times as long as usual this machine takes.
SLOWNESS = float(os.environ[_VARIABLE])
# Seconds that a test waits for anything. It passes only when something never
# comes: a test that needs more of them on a busy machine needs no other limit.
LIMIT_S = 150.0 * SLOWNESS


class NotInTime(AssertionError):
    """What was waited for has not come; reports show what all threads do."""


def wait_until(check: Callable[[], Any], *, pause_s: float = 0.02) -> Any:
    """Call *check* until it returns something true; return that.

    :param pause_s: between two calls; longer where a call takes much
    :raises NotInTime: it has returned nothing true within the limit
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NotInTime(f'not within {LIMIT_S:.0f} s: {found!r}')
        time.sleep(pause_s)
