"""Time calls in turns, and count them from several threads."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks import common


def in_turns(
    calls: dict[str, Callable[[], None]], turns: int
) -> dict[str, list[float]]:
    """Return the times of each call, milliseconds.

    The calls alternate, so that whatever else the machine does falls on
    all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            times[name].append(common.timed(call) * 1000)
    return times


class Counted(NamedTuple):
    """How many calls were made in how many seconds."""

    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


def count(
    call: Callable[[], None],
    threads: int,
    seconds: float,
    most: int = sys.maxsize,
) -> Counted:
    """Call from several threads for a while, and count the calls.

    :param seconds: after which no thread starts another call
    :param most: how many calls to make at most, all threads together
    :raises Exception: the first that a call raised
    """
    end = time.monotonic() + seconds

    def work(_: int) -> int:
        done = 0
        while done < max(1, most // threads) and time.monotonic() < end:
            call()
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        start = time.monotonic()
        total = sum(pool.map(work, range(threads)))
        return Counted(total, time.monotonic() - start)


def rate(call: Callable[[], None], threads: int, seconds: float) -> float:
    """Return calls a second from several threads."""
    return count(call, threads, seconds).rate


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Return the median of some figures, the least and the most of them."""
    return {
        'median': round(statistics.median(values), digits),
        'least': round(min(values), digits),
        'most': round(max(values), digits),
    }
