"""How the daemon is: counters, times, and what it suffers from.

Any thread may write here; pages and pings read. What is suffered from is
said in one line when it changes, and again now and then while it lasts.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

LOG = logging.getLogger(__name__)
_REPEAT_S = 30.0
# Upper ends of the buckets of times, in seconds.
BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
)  # fmt: skip
# Upper ends of the buckets of sizes.
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0)


class Distribution:
    """How often values fell into each bucket.

    :ivar counts: one more than bounds, the last for larger values
    """

    __slots__ = ('bounds', 'counts', 'total')

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Health:
    """Counters by (name, label), distributions, and sufferings by cause."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._times: dict[tuple[str, str], Distribution] = {}
        self._causes: dict[str, str] = {}
        self._since = 0.0
        self._said: tuple[float, frozenset[str]] = (0.0, frozenset())
        self._checks: list[Callable[[], None]] = []

    def count(self, name: str, label: str = '', by: int = 1) -> None:
        """Count something that happened."""
        with self._lock:
            self._counts[name, label] += by

    def time(self, stage: str, seconds: float) -> None:
        """Count how long a stage of a request took."""
        self._put('stage', stage, seconds, BUCKETS)

    def size(self, what: str, value: int) -> None:
        """Count how large something was."""
        self._put('size', what, float(value), SIZES)

    def _put(
        self, kind: str, label: str, value: float, bounds: tuple[float, ...]
    ) -> None:
        with self._lock:
            found = self._times.get((kind, label))
            if found is None:
                found = self._times[kind, label] = Distribution(bounds)
            found.add(value)

    def suffer(self, cause: str, text: str) -> None:
        """Note that something is wrong, until it is well."""
        with self._lock:
            if not self._causes:
                self._since = time.monotonic()
            self._causes[cause] = text

    def well(self, cause: str) -> None:
        """Note that something is not wrong any more."""
        if cause in self._causes:
            with self._lock:
                self._causes.pop(cause, None)

    @property
    def sufferings(self) -> list[str]:
        """What is wrong now, a few words each."""
        with self._lock:
            return [self._causes[cause] for cause in sorted(self._causes)]

    def counters(self) -> dict[str, Any]:
        """Return counts by name; those with labels as a dict of them."""
        found: dict[str, Any] = {}
        with self._lock:
            for (name, label), count in sorted(self._counts.items()):
                if label:
                    found.setdefault(name, {})[label] = count
                else:
                    found[name] = count
        return found

    def distributions(
        self,
    ) -> Mapping[tuple[str, str], tuple[tuple[float, ...], list[int], float]]:
        """Return (bounds, counts, total) by (kind, label)."""
        with self._lock:
            return {
                key: (one.bounds, list(one.counts), one.total)
                for key, one in self._times.items()
            }

    def check(self, look: Callable[[], None]) -> None:
        """Have *look* called before anything is said."""
        self._checks.append(look)

    def say(self) -> None:
        """Log what is suffered from, where that is news."""
        for look in self._checks:
            look()
        now = time.monotonic()
        with self._lock:
            causes = frozenset(self._causes)
            text = '; '.join(self._causes[one] for one in sorted(causes))
            at, before = self._said
            if causes == before and (not causes or now - at < _REPEAT_S):
                return
            self._said = now, causes
            lasted = now - self._since
        if causes:
            LOG.warning('Suffering: %s', text)
        else:
            LOG.warning('Well again after %.0f s', lasted)
