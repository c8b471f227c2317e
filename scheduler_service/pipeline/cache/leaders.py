"""The hosts that weigh most, whatever a request's filters leave of them.

How much a host weighs depends on the request only through the ranges of raw
weights of the hosts that passed: they stretch the normalised weights. Of all
hosts about a thousand leaders are kept whose weights over all hosts are the
highest, and those at the ends of each weigher's range. A request weighs the
leaders that passed, and works out how much another host can weigh at most.

Leaders belong to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.weighing import Term, added, normalised

_LEADERS = 768
# Hosts at each end of a weigher's range.
_EXTREMES = 48
# Leaders are chosen anew after so many changes, if they do not do any more.
_AGED = 256
# They are chosen anew as well when so many have come by changes.
_MOST_LEADERS = 4 * _LEADERS
_MOST_BOUNDS = 1024
# Rounding in a sum of weights, relative to the largest of them.
_ROUNDING = 1e-12


class _Range(NamedTuple):
    """Raw weights of one weigher: their ends, and those of other hosts.

    :ivar low: of all hosts, or fixed by the weigher
    :ivar others_low: no host that is not a leader has less
    """

    low: float
    high: float
    others_low: float
    others_high: float


class Leaders:
    """The leaders under a plan's terms, for one table.

    Every host that is not a leader weighs less than ``cut`` under the ranges
    of all hosts, or exactly ``cut`` and comes after ``cut_row``.

    :param terms: each with raw weights that are kept true
    """

    def __init__(self, table: HostTable, terms: Sequence[Term]) -> None:
        self._terms = list(terms)
        self._position = self._chosen_at = 0
        self._choose(table)

    def refresh(self, table: HostTable) -> None:
        """Take in the hosts whose load changed."""
        changes = table.load.changes
        if changes.end == self._position:
            return
        rows = changes.since(self._position)
        if rows is None or len(rows) > _AGED:
            self._choose(table)
            return
        self._position = changes.end
        came = []
        for row in set(rows.tolist()):
            raw = [term.raw.item(row) for term in self._terms]
            at = self._places.item(row)
            if at >= 0:
                self._raw[:, at] = raw
            elif self._leads(row, raw):
                came.append(row)
        if len(self._rows) + len(came) > _MOST_LEADERS:
            self._choose(table)
        elif came:
            self._gather(table, np.union1d(self._rows, came))

    def choose_if_aged(self, table: HostTable) -> bool:
        """Choose leaders anew if many hosts changed; return whether."""
        if table.load.changes.end - self._chosen_at < _AGED:
            return False
        self._choose(table)
        return True

    def rank(self, passed: Any, count: int, best: int) -> Ranking | None:
        """Return the ranking of the leaders that passed.

        :param passed: tells of rows, int64[m], whether they passed, bool[m]
        :param count: how many hosts passed, at least one
        :param best: how many of the best have to be certain
        :return: None where another host may be among them
        """
        leads = np.flatnonzero(passed(self._rows))
        if len(leads) < min(best, count) or not self._finite:
            return None
        rows = self._rows.take(leads)
        if count == 1:
            # One host alone is not weighed.
            return Ranking(rows, np.zeros(1), [], 1)
        raw = self._raw.take(leads, axis=1)
        complete = len(rows) == count
        ends = self._ends(raw, complete)
        if ends is None:
            return None
        ranking = self._weigh(rows, raw, ends, count, leads)
        if complete or self._is_certain(ranking, ends, best):
            return ranking
        return None

    def _choose(self, table: HostTable) -> None:
        """Choose the leaders among all hosts."""
        self._position = self._chosen_at = table.load.changes.end
        count = len(table)
        self._ranges: list[_Range] = []
        self._bounds: dict[tuple[float, ...], float] = {}
        self._cut, self._cut_row = -np.inf, count
        if count <= 2 * _LEADERS:
            self._gather(table, np.arange(count))
            return
        leads = np.zeros(count, np.bool_)
        totals = np.zeros(count)
        for term in self._terms:
            one = _extremes(term, leads)
            self._ranges.append(one)
            part = normalised(term.raw, one.low, one.high, term.factor)
            if part is not None:
                totals += part
        self._cut = float(np.partition(totals, -_LEADERS)[-_LEADERS])
        above = totals > self._cut
        ties = np.flatnonzero(totals == self._cut)
        taken = ties[: _LEADERS - int(np.count_nonzero(above))]
        self._cut_row = int(taken[-1])
        leads |= above
        leads[taken] = True
        self._gather(table, np.flatnonzero(leads))

    def _gather(self, table: HostTable, rows: Rows) -> None:
        """Keep the raw weights of the leaders side by side."""
        self._rows = rows
        self._places = np.full(len(table), -1, np.int32)
        self._places[rows] = np.arange(len(rows), dtype=np.int32)
        self._raw = np.empty((len(self._terms), len(rows)))
        self._factors: dict[int, Floats] = {}
        for at, term in enumerate(self._terms):
            self._raw[at] = term.raw[rows]
            if not isinstance(term.factor, float):
                self._factors[at] = term.factor[rows]
        self._finite = bool(np.isfinite(self._raw).all())

    def _leads(self, row: int, raw: Sequence[float]) -> bool:
        """Whether a host that was no leader has to become one."""
        total = 0.0
        for term, value, one in zip(
            self._terms, raw, self._ranges, strict=True
        ):
            if value < one.others_low or value > one.others_high:
                return True
            factor = term.factor
            if not isinstance(factor, float):
                factor = factor.item(row)
            part = normalised(value, one.low, one.high, factor)
            total += part or 0.0
        return bool(total >= self._cut)

    def _ends(
        self, raw: Any, complete: bool
    ) -> tuple[list[float], list[float]] | None:
        """Return the lows and highs of the hosts that passed.

        None where a host that is no leader may be at an end.
        """
        if not self._terms:
            return [], []
        lows, highs = raw.min(axis=1).tolist(), raw.max(axis=1).tolist()
        for at, term in enumerate(self._terms):
            weigher = term.weigher
            if weigher.minval is not None:
                lows[at] = weigher.minval
            elif not complete and lows[at] > self._ranges[at].others_low:
                return None
            if weigher.maxval is not None:
                highs[at] = weigher.maxval
            elif not complete and highs[at] < self._ranges[at].others_high:
                return None
        return lows, highs

    def _weigh(
        self,
        rows: Rows,
        raw: Any,
        ends: tuple[list[float], list[float]],
        count: int,
        leads: Any,
    ) -> Ranking:
        """Normalise, multiply and add, as a pass over all hosts does."""
        lows, highs = ends
        totals: Floats | None = None
        parts: list[tuple[str, Floats]] = []
        for at, (weigher, factor, _) in enumerate(self._terms):
            if not isinstance(factor, float):
                factor = self._factors[at].take(leads)
            part = normalised(raw[at], lows[at], highs[at], factor)
            if part is not None:
                parts.append((weigher.name, part))
                totals = added(totals, part, len(parts))
        if totals is None:
            totals = np.zeros(len(rows))
        return Ranking(rows, totals, parts, count)

    def _is_certain(
        self,
        ranking: Ranking,
        ends: tuple[list[float], list[float]],
        best: int,
    ) -> bool:
        """Whether no host that is not a leader can be among the best."""
        at = ranking.best_at(best)[-1]
        total, row = ranking.totals.item(at), ranking.rows.item(at)
        if all(
            (one.low, one.high) == pair
            for one, pair in zip(
                self._ranges, zip(*ends, strict=True), strict=True
            )
        ):
            return total > self._cut or (
                total == self._cut and row <= self._cut_row
            )
        key = *ends[0], *ends[1]
        most = self._bounds.get(key)
        if most is None:
            if len(self._bounds) >= _MOST_BOUNDS:
                self._bounds.clear()
            most = self._bounds[key] = self._most(ends)
        return total > most

    def _most(self, ends: tuple[list[float], list[float]]) -> float:
        """Return how much a host that is no leader can weigh at most.

        With the ranges of all hosts its weight is a sum of ``factor x p``
        and at most the cut. Another range stretches each p by the ratio of
        the two ranges, and moves it by a constant.
        """
        stretched, constant, scale = [], 0.0, abs(self._cut)
        for term, one, low, high in zip(
            self._terms, self._ranges, *ends, strict=True
        ):
            factors = _least_and_most(term.factor)
            size, own = one.high - one.low, high - low
            if own:
                moved = (one.low - low) / own
                constant += max(factor * moved for factor in factors)
                scale += max(map(abs, factors)) * (1 + abs(moved))
            if size:
                # The least and the most that p is for hosts that passed.
                least = max(low, one.others_low) - one.low
                most = min(high, one.others_high) - one.low
                products = [
                    factor * end / size
                    for factor in factors
                    for end in (least, most)
                ]
                stretched.append((size / own if own else 0.0, products))
                scale += max(map(abs, products)) * (1 + stretched[-1][0])
        bound = min(
            base * self._cut
            + sum(
                max((stretch - base) * product for product in products)
                for stretch, products in stretched
            )
            for base in {1.0, *(stretch for stretch, _ in stretched)}
        )
        return bound + constant + _ROUNDING * scale


def _least_and_most(factor: Any) -> tuple[float, ...]:
    if isinstance(factor, float):
        return (factor,)
    return float(factor.min()), float(factor.max())


def _extremes(term: Term, leads: Any) -> _Range:
    """Mark the hosts at the ends of a range; return the range."""
    raw, weigher = term.raw, term.weigher
    low, high = float(raw.min()), float(raw.max())
    others_low, others_high = low, high
    if weigher.minval is None:
        others_low = float(np.partition(raw, _EXTREMES)[_EXTREMES])
        leads[raw < others_low] = True
        leads[np.flatnonzero(raw == others_low)[:_EXTREMES]] = True
    if weigher.maxval is None:
        others_high = float(np.partition(raw, -_EXTREMES)[-_EXTREMES])
        leads[raw > others_high] = True
        leads[np.flatnonzero(raw == others_high)[:_EXTREMES]] = True
    return _Range(
        low if weigher.minval is None else weigher.minval,
        high if weigher.maxval is None else weigher.maxval,
        others_low,
        others_high,
    )
