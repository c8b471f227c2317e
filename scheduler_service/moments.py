"""Times as operators write and read them, and what happened at one.

Stateless; no function reads a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_UNITS = {'': 1, 's': 1, 'm': 60, 'h': 3600, 'd': 86400}
_AGE = re.compile(r'(\d{1,7}(?:\.\d+)?)([smhd]?)', re.ASCII)
_LONGEST_S = 1e9
Moment = timedelta | datetime


class Occurrence(NamedTuple):
    """Something that happened, for the store.

    :ivar event: started, stopped, reloaded, not reloaded, broker away,
        database away, or command
    :ivar began: by ``time.monotonic`` of this process
    :ivar ended: the same; None: it took no time
    """

    event: str
    detail: str
    began: float
    ended: float | None = None


def seconds(text: str) -> float:
    """Return a duration in seconds: a number, or a number with s, m, h or d.

    :raises ValueError: the text is neither, or not above 0
    """
    match = _AGE.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < value < _LONGEST_S:
        raise ValueError(
            f'{text!a}: not a time such as 30, 90s, 15m, 6h or 2d'
        )
    return value


def past(text: str) -> Moment:
    """Return an age, or a date or time, which is UTC without an offset.

    :raises ValueError: the text is neither
    """
    try:
        # A number alone might be meant as days.
        if _AGE.fullmatch(text) and text[-1] in _UNITS:
            return timedelta(seconds=seconds(text))
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment.timestamp()
    except (OverflowError, ValueError):
        raise ValueError(
            f'{text!a} is neither a time such as 2026-11-01 or '
            '2026-11-01T12:00 nor an age such as 30d, 12h, 90m or 30s'
        ) from None
    return moment


def stamp(moment: Moment, now: float) -> float:
    """Return a time in seconds since the epoch.

    :param now: by the clock whose times are compared
    """
    if isinstance(moment, timedelta):
        return now - moment.total_seconds()
    return moment.timestamp()


def text(stamp: float) -> str:
    """Return seconds since the epoch as date and time, UTC, as in RFC 3339."""
    return datetime.fromtimestamp(stamp, UTC).isoformat('T', 'milliseconds')
