"""The daemon's condition: counters, durations, sizes, and what is degraded.

Owns all of these numbers. Any thread may call any method; the lock is held
for the few instructions of one update or one copy. The thread of
``host_state_writer`` calls :meth:`Health.log_changes` about twice a second,
so that each change is logged once, whoever noticed it.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service import errors

LOG = logging.getLogger(__name__)
DATABASE = 'database'
_LOCKS = 'locks'
_QUEUE = 'queue'
_BATCHES = 'batches'
# A batch that takes longer counts as a degradation.
_SLOW_BATCH_S = 1.0
# What stays degraded is logged again after this time.
_REPEAT_S = 30.0
# A measured value counts for so long, in seconds.
_MEASURED_S = 30.0
# What recent() covers, and how often it is measured, in seconds.
_RECENT_S = 60.0
_SAMPLE_S = 5.0
_RECENT_COUNTS = 'requests', 'refusals'
_P95 = 0.95
# Upper ends of the buckets of times, in seconds.
BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
)  # fmt: skip
# Upper ends of the buckets of sizes.
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0)


class Distribution(msgspec.Struct):
    """How often values fell into each bucket.

    :ivar bounds: upper ends of the buckets, ascending
    :ivar counts: one more than bounds, the last for larger values
    :ivar total: sum of all values
    """

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0


class _Degradation(msgspec.Struct):
    """Something that does not work as it should.

    :ivar text: what is wrong, as it is logged
    :ivar recovered: sentence for the log once it works again
    :ivar since: clock time at which it was first noticed
    :ivar level: logging level of its lines
    :ivar logged_at: clock time of its last line in the log; None before one
    :ivar expires: clock time from which the measurement no longer counts
    """

    text: str
    recovered: str
    since: float
    level: int
    logged_at: float | None = None
    expires: float = math.inf


def _between(first: Any, last: Any) -> dict[str, float] | None:
    """Return the figures of what was added; None: nothing was.

    :param first: bounds, counts and total as earlier; None: all were 0
    """
    bounds, counts, total = last
    if first is not None:
        counts = [
            n - before for n, before in zip(counts, first[1], strict=True)
        ]
        total -= first[2]
    number = sum(counts)
    if not number:
        return None
    place = bisect.bisect_left(
        list(itertools.accumulate(counts)), _P95 * number
    )
    return {
        'count': number,
        'mean_ms': round(1000 * total / number, 2),
        # The upper end of the bucket; the last one has none.
        'p95_ms': 1000 * bounds[min(place, len(bounds) - 1)],
    }


class Health:
    """Counters by (name, label), distributions, and degradations by cause.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._distributions: dict[tuple[str, str], Distribution] = {}
        self._causes: dict[str, _Degradation] = {}
        # Cause -> what it was and the line that log_changes() is to write.
        self._ended: dict[str, tuple[_Degradation, str]] = {}
        self._checks: list[Callable[[], None]] = []
        # (time, counts, distributions), the oldest about a minute ago.
        self._samples: deque[tuple[float, Any, Any]] = deque()
        self._sample()

    def count(self, name: str, label: str = '', by: int = 1) -> None:
        """Count something that happened."""
        with self._lock:
            self._counts[name, label] += by

    def count_each(self, name: str, labelled: Mapping[str, int]) -> None:
        """Count what happened with several labels.

        :param labelled: label -> how often
        """
        with self._lock:
            for label, by in labelled.items():
                self._counts[name, label] += by

    def time(self, stage: str, seconds: float) -> None:
        """Add to the distribution of how long a stage of a request takes."""
        with self._lock:
            self._add('stage', stage, seconds, BUCKETS)

    def size(self, what: str, value: int) -> None:
        """Add to the distribution of how large something is."""
        with self._lock:
            self._add('size', what, float(value), SIZES)

    def served(self, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request, and add to how long these take."""
        with self._lock:
            self._counts['http_requests', f'{route} {status}'] += 1
            self._add('http', route, seconds, BUCKETS)

    def _add(
        self, kind: str, label: str, value: float, bounds: tuple[float, ...]
    ) -> None:
        distribution = self._distributions.get((kind, label))
        if distribution is None:
            distribution = Distribution(bounds, [0] * (len(bounds) + 1))
            self._distributions[kind, label] = distribution
        distribution.counts[bisect.bisect_left(bounds, value)] += 1
        distribution.total += value

    def counters(self) -> dict[str, Any]:
        """Return counts by name; those with labels as a dict of them."""
        counts: dict[str, Any] = {}
        with self._lock:
            for (name, label), count in sorted(self._counts.items()):
                if label:
                    counts.setdefault(name, {})[label] = count
                else:
                    counts[name] = count
        return counts

    def distributions(
        self,
    ) -> Mapping[tuple[str, str], tuple[tuple[float, ...], list[int], float]]:
        """Return (bounds, counts, total) by (kind, label)."""
        with self._lock:
            return {
                key: (values.bounds, list(values.counts), values.total)
                for key, values in self._distributions.items()
            }

    def degrade(
        self,
        cause: str,
        text: str,
        recovered: str = '',
        level: int = logging.WARNING,
        lasts_s: float = math.inf,
    ) -> None:
        """Record that something is wrong, until :meth:`recover`.

        :param cause: what it is known by, one word
        :param text: what is wrong, for the log and for ``ping``
        :param recovered: sentence for the log once it is over
        :param level: logging level
        :param lasts_s: after how long it ends unless it is recorded again
        """
        with self._lock:
            degradation = self._causes.get(cause)
            if degradation is None and cause in self._ended:
                # It came back before its end was logged: nothing ended.
                degradation, _ = self._ended.pop(cause)
            if degradation is None:
                degradation = _Degradation(text, '', self._clock(), level)
            degradation.text = text
            degradation.recovered = recovered or f'Recovered: {cause},'
            degradation.expires = self._clock() + lasts_s
            self._causes[cause] = degradation

    def recover(self, cause: str, details: str = '') -> None:
        """Record that something is not wrong any more.

        :param details: more for the line in the log
        """
        if cause not in self._causes:
            return
        with self._lock:
            degradation = self._causes.pop(cause, None)
            if degradation is None or degradation.logged_at is None:
                return
            lasted = self._clock() - degradation.since
            line = f'{degradation.recovered} after {lasted:.0f} s'
            if details:
                line += f'; {details}'
            self._ended[cause] = degradation, line

    def is_degraded(self, cause: str) -> bool:
        """Whether something is wrong that is known by *cause*."""
        return cause in self._causes

    @property
    def degraded(self) -> list[str]:
        """What is wrong now, a few words each."""
        return [text for text, _ in self.degradations()]

    def degradations(self) -> list[tuple[str, float]]:
        """Return what is wrong now, and for how many seconds it has been."""
        with self._lock:
            now = self._clock()
            return [
                (each.text, now - each.since)
                for _, each in sorted(self._causes.items())
            ]

    def add_check(self, check: Callable[[], None]) -> None:
        """Have *check* called before each look at what changed.

        It calls :meth:`degrade` or :meth:`recover`.
        """
        self._checks.append(check)

    def _sample(self) -> None:
        now, samples = self._clock(), self._samples
        if samples and now < samples[-1][0] + _SAMPLE_S:
            return
        samples.append((now, self.counters(), self.distributions()))
        while samples[0][0] < now - _RECENT_S - _SAMPLE_S:
            samples.popleft()

    def recent(self) -> dict[str, Any]:
        """Return what happened in the last minute, or since the start.

        :return: ``seconds`` that are covered; ``requests`` by outcome and
            ``refusals`` by filter and error, as counts; ``stages`` by name,
            each ``{count, mean_ms, p95_ms}``
        """
        at, counts, distributions = self._samples[0]
        stages = {}
        for (kind, stage), last in sorted(self.distributions().items()):
            figures = _between(distributions.get((kind, stage)), last)
            if kind == 'stage' and figures is not None:
                stages[stage] = figures
        present = self.counters()
        return {
            'seconds': round(self._clock() - at, 1),
            **{
                name: dict(
                    Counter(present.get(name)) - Counter(counts.get(name))
                )
                for name in _RECENT_COUNTS
            },
            'stages': stages,
        }

    def log_changes(self) -> None:
        """Log what is newly degraded, what recovered, and what lasts."""
        for check in self._checks:
            check()
        self._sample()
        with self._lock:
            now = self._clock()
            expired = [
                cause
                for cause, each in self._causes.items()
                if each.expires <= now
            ]
        for cause in expired:
            self.recover(cause, 'nothing was measured since')
        self._log()

    def _log(self) -> None:
        with self._lock:
            now = self._clock()
            lines = [
                (logging.WARNING, line) for _, line in self._ended.values()
            ]
            self._ended.clear()
            for cause in sorted(self._causes):
                current = self._causes[cause]
                lasted = now - current.since
                if current.logged_at is None:
                    line = 'Degraded'
                elif now - current.logged_at >= _REPEAT_S:
                    line = f'Still degraded after {lasted:.0f} s'
                else:
                    continue
                current.logged_at = now
                lines.append((current.level, f'{line}: {current.text}'))
        for level, line in lines:
            _log_alone(level, line)

    @property
    def database_reachable(self) -> bool:
        """Whether the database answered when the engine last asked."""
        return DATABASE not in self._causes

    def database_failed(
        self, error: errors.StoreUnavailable, retry_s: float
    ) -> None:
        """Record, and log at once, that the database does not answer.

        :param retry_s: seconds until it is asked again
        """
        if self.database_reachable:
            self.count('database_lost')
        self.degrade(
            DATABASE,
            f'database unreachable{_reason(error)}; '
            f'retrying every {retry_s:g} s',
            'Database reachable again',
            logging.ERROR,
        )
        self._log()

    def database_answered(self, waiting: int) -> None:
        """Record, and log at once, that the database answers again.

        :param waiting: requests that waited for it
        """
        self.recover(_LOCKS)
        if self.database_reachable:
            return
        were = 'request was' if waiting == 1 else 'requests were'
        self.recover(DATABASE, f'{waiting} {were} waiting' if waiting else '')
        self._log()

    def database_timed_out(self, error: errors.StoreTimeout) -> None:
        """Record, and log at once, that a lock or statement took too long."""
        self.count('database_timeouts')
        if _LOCKS not in self._causes:
            self._degrade_locks(str(error.args[0]))

    def database_blocked(self, sessions: Sequence[str]) -> None:
        """Record, and log at once, which sessions block the daemon's."""
        if sessions:
            held = f'locks in the database are held by {", ".join(sessions)}'
            self._degrade_locks(held)

    def _degrade_locks(self, text: str) -> None:
        self.degrade(_LOCKS, text, 'Locks in the database are free again')
        self._log()

    def check_queue(self, length: int, limit: int) -> None:
        """Record whether the request queue is more than half full."""
        if length > limit // 2:
            self.degrade(
                _QUEUE,
                f'{length} requests are queued, at most {limit} are accepted',
                'Request queue less than half full again',
            )
        else:
            self.recover(_QUEUE)

    def check_batch(self, seconds: float) -> None:
        """Record whether the last batch took too long."""
        if seconds > _SLOW_BATCH_S:
            self.degrade(
                _BATCHES,
                f'the last batch of requests took {seconds:.1f} s',
                f'No batch takes more than {_SLOW_BATCH_S:g} s any more',
                lasts_s=_MEASURED_S,
            )
        else:
            self.recover(_BATCHES)


def _log_alone(level: int, line: str) -> None:
    """Log a line without the error that is being handled.

    oslo.log adds that to warnings, and the line has its words already. It adds
    none of these built-in errors.
    """
    try:
        raise KeyError
    except KeyError:
        LOG.log(level, '%s', line)


def _reason(error: errors.StoreUnavailable) -> str:
    """Return the driver's words in brackets; empty where there are none."""
    sentence = 'The database does not answer'
    text = str(error.args[0]).removeprefix(sentence).strip(' .:')
    return f' ({text})' if text else ''
