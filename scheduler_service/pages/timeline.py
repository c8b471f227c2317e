"""The last day as a strip: decisions a minute, and what happened meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib import parse

from scheduler_service.store.records.rates import Counts, Rate

DAY_S = 86_400
# A bar is as wide as this time, in seconds.
_BAR_S = 900
# Sizes of the picture, which is stretched: a bar, the bars, a lane of events.
_BAR, HEIGHT, LANE = 10, 80, 8
WIDTH = DAY_S // _BAR_S * _BAR
# Filters that have a colour of their own, those that refuse most.
_FILTERS = 3
_OTHERS = 'others'
# Lanes of events, from above.
LANES = {
    'outages': ('database away', 'broker away', 'silent', 'degraded'),
    'starts and stops': ('started', 'stopped'),
    'reloads': ('reloaded', 'not reloaded'),
    'commands': ('command',),
}


class Shape(NamedTuple):
    """A rectangle of the strip, which leads to the decisions of its time."""

    name: str
    x: float
    y: float
    width: float
    height: float
    link: str
    title: str


class Timeline:
    """What a day looks like.

    :param rates: of its minutes
    :param events: as of :func:`event_log.since`
    :param now: its end, in seconds since the epoch
    :ivar totals: of the whole day
    :ivar filters: those with a colour of their own, then ``others``, each
        with its refusals and the link to these
    :ivar most: the highest bar, in decisions a minute
    :ivar lanes: kinds of events, each with their marks
    :ivar hours: links and numbers of the hours with decisions
    :ivar ticks: times below the strip
    """

    def __init__(
        self,
        rates: Sequence[Rate],
        events: Sequence[Mapping[str, Any]],
        now: float,
    ) -> None:
        self._now = now
        self._start = int(now // _BAR_S + 1) * _BAR_S - DAY_S
        self.totals = Counts()
        bars: dict[int, Counts] = {}
        hours: dict[int, Counts] = {}
        for rate in rates:
            at = int(rate.at)
            self.totals.add(rate.counts)
            bars.setdefault(at // _BAR_S * _BAR_S, Counts()).add(rate.counts)
            hours.setdefault(at // 3600 * 3600, Counts()).add(rate.counts)
        self._bars = {at: bars[at] for at in bars if at >= self._start}
        by_filter = Counter(self.totals.filters).most_common()
        self.filters = [
            (name, number, self._link(self._start, now, filter=name))
            for name, number in by_filter[:_FILTERS]
        ]
        if others := sum(number for _, number in by_filter[_FILTERS:]):
            link = self._link(self._start, now, outcome='refused')
            self.filters.append((_OTHERS, others, link))
        self.most = max(
            (each.decisions / self._minutes(at)
             for at, each in self._bars.items()), default=0.0,
        )  # fmt: skip
        self.lanes = [
            (name, [self._mark(name, f'lane{place}', each)
                    for each in events if each['event'] in kinds])
            for place, (name, kinds) in enumerate(LANES.items())
        ]  # fmt: skip
        self.hours = [
            (time.strftime('%m-%d %H:%M', time.gmtime(at)),
             self._link(at, at + 3600), hours[at])
            for at in sorted(hours, reverse=True)
        ]  # fmt: skip
        self.ticks = [
            time.strftime('%H:%M', time.gmtime(self._start + part * DAY_S / 4))
            for part in range(5)
        ]

    def _minutes(self, at: int) -> float:
        """Return how many minutes of a bar are over."""
        return max(1.0, min(_BAR_S, self._now - at) / 60)

    @staticmethod
    def _link(since: float, until: float, **criteria: str) -> str:
        """Return the link to the decisions of a time."""
        query = {
            word: time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))
            for word, moment in (('since', since), ('until', until))
        }
        if criteria:
            query |= {'outcome': 'refused', **criteria}
        filled = {name: value for name, value in query.items() if value}
        return f'/decisions?{parse.urlencode(filled)}'

    def bars(self) -> Iterator[Shape]:
        """Yield the bars of each time, from below."""
        for at, counts in sorted(self._bars.items()):
            yield from self._bar(at, counts)

    def _bar(self, at: int, counts: Counts) -> Iterator[Shape]:
        refused = dict(counts.filters)
        parts: list[tuple[str, int, dict[str, str], str]] = [
            ('chosen', counts.decisions - counts.refused, {}, 'not refused')
        ]
        for place, (name, *_) in enumerate(self.filters[:_FILTERS]):
            text = f'refused by {name or "no filter"}'
            number = refused.pop(name, 0)
            parts.append((f'refused{place}', number, {'filter': name}, text))
        rest, others = sum(refused.values()), {'outcome': 'refused'}
        parts.append(('refused3', rest, others, 'refused by others'))
        y, x = float(HEIGHT), (at - self._start) / _BAR_S * _BAR
        begin = time.strftime('%H:%M', time.gmtime(at))
        for shape, number, criteria, text in parts:
            if number:
                a_minute = number / self._minutes(at)
                height = round(HEIGHT * a_minute / self.most, 2)
                y -= height
                yield Shape(
                    shape, x, round(y, 2), _BAR - 1, height,
                    self._link(at, at + _BAR_S, **criteria),
                    f'{begin}: {number:,} {text}, {a_minute:.1f} a minute',
                )  # fmt: skip

    def _mark(self, lane: str, shape: str, event: Mapping[str, Any]) -> Shape:
        begun = max(event['begun_at'], self._start)
        is_open = lane == 'outages'
        ended = event['ended_at'] or (self._now if is_open else begun)
        scale = WIDTH / DAY_S
        width = max(3.0, round((ended - begun) * scale))
        x = min(round((begun - self._start) * scale, 1), WIDTH - width)
        begin = time.strftime('%H:%M', time.gmtime(event['begun_at']))
        return Shape(
            shape, x, 0, width, LANE,
            self._link(begun - _BAR_S, max(ended, begun + _BAR_S)),
            f'{begin}: {event["event"]}, {event["who"]} '
            f'{event["detail"]}'[:150],
        )  # fmt: skip


def spark(points: Sequence[tuple[float, float]], now: float) -> str:
    """Return the points of a line of a day, 100 wide and 16 high.

    :param points: times, and percents
    """
    return ' '.join(
        f'{100 - (now - at) / DAY_S * 100:.1f},'
        f'{16 - min(max(full, 0), 100) * 0.16:.1f}'
        for at, full in points
    )
