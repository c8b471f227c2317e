"""The daemon's condition: what it counts and measures, what is degraded.

Any thread may call any method; the lock is held for the few instructions of
one update or one copy. The thread of ``host_state_writer`` calls
:meth:`Health.log_changes` about twice a second, so that each change is logged
once, whoever noticed it.
"""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
from collections.abc import Callable

import msgspec

from scheduler_service import errors
from scheduler_service.engine.measurements import Measurements
from scheduler_service.moments import Occurrence

LOG = logging.getLogger(__name__)
DATABASE = 'database'
SNAPSHOT = 'snapshot'
_LOCKS = 'locks'
_QUEUE = 'queue'
_BATCHES = 'batches'
# A batch that takes longer counts as a degradation.
_SLOW_BATCH_S = 1.0
# What stays degraded is logged again after this time.
_REPEAT_S = 30.0
# Seconds for which a measured value counts, where no other follows it.
_MEASURED_S = 30.0
# Seconds for which it shows that a thread was started again.
_RESTARTED_S = 60.0
# Causes that are outages, and how many occurrences wait to be stored.
_OUTAGES = DATABASE, 'broker'
_MOST_WAITING = 1000


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


class Health(Measurements):
    """Counters and histograms by name, and degradations by cause.

    :param clock: monotonic seconds
    :ivar occurred: what the store does not have yet; outages once they end
    :ivar on_vital_end: ends the process, if it is a daemon's
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._lock = threading.Lock()
        self._causes: dict[str, _Degradation] = {}
        # Cause -> what it was and the line that log_changes() is to write.
        self._ended: dict[str, tuple[_Degradation, str]] = {}
        self._checks: list[Callable[[], None]] = []
        self.occurred = collections.deque[Occurrence](maxlen=_MOST_WAITING)
        self.on_vital_end: Callable[[], None] = lambda: None

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

    def thread_ended(self, name: str, fault: BaseException) -> None:
        """Record that a thread is started again: see ``worker:new_thread``."""
        self.degrade(
            f'thread {name}',
            f'thread {name} failed and is started again: '
            f'{errors.text_of(fault)}',
            lasts_s=_RESTARTED_S,
        )

    def vital_thread_ended(self, name: str, fault: BaseException) -> None:
        """Record the same of a thread that the daemon cannot replace."""
        self.thread_ended(name, fault)
        self.on_vital_end()

    def add_check(self, check: Callable[[], None]) -> None:
        """Have *check* called before each look at what changed.

        It calls :meth:`degrade` or :meth:`recover`.
        """
        self._checks.append(check)

    def log_changes(self) -> None:
        """Log what is newly degraded, what recovered, and what lasts."""
        for check in self._checks:
            check()
        self.sample()
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
            self.occurred += [
                Occurrence(f'{cause} away', each.text, each.since, now)
                for cause, (each, _) in self._ended.items()
                if cause in _OUTAGES
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
            text = str(error.args[0])
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
