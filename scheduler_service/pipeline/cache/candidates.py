"""The best of the hosts that pass, and what is known of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.pipeline.ranking import Ranking, best_of
from scheduler_service.pipeline.weighing import Term, normalised

_KEPT = 768
# Of each weigher the hosts at its ends: the range is theirs for longer.
_EXTREMES = 8
# When so many have come by changes, the best are looked for anew.
_MOST = 8 * _KEPT
_Ends = tuple[float, float]


class Candidates:
    """Some thousand hosts with the highest totals, and bounds of the rest.

    :param rows: those that pass, ascending
    :param count: of hosts in the table
    """

    def __init__(self, rows: Rows, count: int, terms: Sequence[Term]) -> None:
        self._terms = terms
        self._kept = np.zeros(count, np.bool_)
        self._rows = rows
        self._others = 0
        self._cut, self._cut_row = -np.inf, -1
        self._others_ends: list[_Ends] = []
        self._ends: list[_Ends] = []
        # Whether a host has left the others: their ends are outer bounds.
        self._bounds_only = False
        self._ranking: Ranking | None = None
        if len(rows) > _KEPT:
            self._keep_best(rows)
        self._kept[self._rows] = True

    def _keep_best(self, rows: Rows) -> None:
        raw = [term.raw.take(rows) for term in self._terms]
        self._ends = [
            _ends(term, values)
            for term, values in zip(self._terms, raw, strict=True)
        ]
        ranking = self._weigh(rows, raw, self._ends, len(rows))
        totals = ranking.totals
        threshold = np.partition(totals, -_KEPT)[-_KEPT]
        keep = totals > threshold
        ties = np.flatnonzero(totals == threshold)
        keep[ties[: _KEPT - int(np.count_nonzero(keep))]] = True
        for term, values in zip(self._terms, raw, strict=True):
            if term.weigher.maxval is None:
                keep[best_of(values * 1.0, _EXTREMES)] = True
            if term.weigher.minval is None:
                keep[best_of(values * -1.0, _EXTREMES)] = True
        rest = np.flatnonzero(~keep)
        self._rows = rows[keep]
        self._others = len(rest)
        if not len(rest):
            return
        self._others_ends = [
            (float(values[rest].min()), float(values[rest].max()))
            for values in raw
        ]
        left = totals[rest]
        at = int(left.argmax())
        self._cut, self._cut_row = float(left[at]), int(rows[rest[at]])

    def refresh(
        self,
        rows: Rows,
        before: np.ndarray[Any, Any],
        after: np.ndarray[Any, Any],
    ) -> bool:
        """Take in rows that changed; return whether that was possible.

        :param before: whether each passed, bool[m]
        :param after: whether each passes now
        """
        self._ranking = None
        kept = self._kept[rows]
        left = int(np.count_nonzero(before & ~kept))
        if left:
            self._others -= left
            self._bounds_only = True
        gone = kept & ~after
        came = rows[after & ~kept]
        if gone.any():
            self._kept[rows[gone]] = False
            self._rows = self._rows[self._kept[self._rows]]
        if len(came):
            self._kept[came] = True
            self._rows = np.union1d(self._rows, came)
        return len(self._rows) <= _MOST

    def rank(
        self, count: int, excluded: Rows, best: int, ties: bool
    ) -> Ranking | None:
        """Return the ranking of those kept; None where it is not certain.

        :param count: how many hosts pass
        :param excluded: rows that would pass, but for this request
        """
        if not len(excluded) and self._ranking is not None:
            ranking = self._ranking
        else:
            rows = self._rows
            if len(excluded):
                rows = rows[~np.isin(rows, excluded)]
            raw = [term.raw.take(rows) for term in self._terms]
            ends = self._range(raw, bool(len(excluded)))
            if ends is None:
                return None
            self._now = ends
            ranking = self._weigh(rows, raw, ends, count)
            if not len(excluded):
                self._ranking = ranking
        if not self._is_certain(ranking, best, ties):
            return None
        return ranking

    def rank_rows(self, rows: Rows) -> Ranking:
        """Return the ranking of the only rows that pass, at least one."""
        raw = [term.raw.take(rows) for term in self._terms]
        ends = [
            _ends(term, values)
            for term, values in zip(self._terms, raw, strict=True)
        ]
        return self._weigh(rows, raw, ends, len(rows))

    def _weigh(
        self,
        rows: Rows,
        raw: Sequence[Any],
        ends: Sequence[_Ends],
        count: int,
    ) -> Ranking:
        """Add the terms under given ranges; one host alone is not weighed."""
        totals = np.zeros(len(rows))
        parts: list[tuple[str, Floats]] = []
        for term, values, (low, high) in zip(
            self._terms if count > 1 else (), raw, ends, strict=False
        ):
            factor = term.factor
            if not isinstance(factor, float):
                factor = factor[rows]
            part = normalised(values, low, high, factor)
            if part is not None:
                totals += part
                parts.append((term.weigher.name, part))
        return Ranking(rows, totals, parts, count)

    def _range(
        self, raw: Sequence[Any], excluding: bool
    ) -> list[_Ends] | None:
        """Return each term's range over all that pass; None: not known.

        The ends of the others are exact until one of them leaves; after that
        they are outer bounds, which do where those kept reach as far.
        """
        if not self._others:
            return [
                _ends(term, values) if len(values) else (0.0, 0.0)
                for term, values in zip(self._terms, raw, strict=True)
            ]
        exact = not (self._bounds_only or excluding)
        ranges = []
        for term, values, (low, high) in zip(
            self._terms, raw, self._others_ends, strict=True
        ):
            if not len(values):
                return None
            own_low, own_high = _ends(term, values)
            if not exact and (
                (term.weigher.minval is None and own_low > low)
                or (term.weigher.maxval is None and own_high < high)
            ):
                return None
            if term.weigher.minval is None:
                own_low = min(own_low, low)
            if term.weigher.maxval is None:
                own_high = max(own_high, high)
            ranges.append((own_low, own_high))
        return ranges

    def _is_certain(self, ranking: Ranking, best: int, ties: bool) -> bool:
        """Whether no host that is not kept can be among the best."""
        if not self._others:
            return True
        order = ranking.best_at(best)
        if len(order) < best:
            return False
        drift = self._drift()
        limit = self._cut + drift
        if drift:
            limit += 1e-9 * (1.0 + abs(limit))
        total = ranking.totals[order[-1]]
        if total > limit:
            return True
        if drift or ties or total < limit:
            return False
        # Ties are broken by row order.
        tied = [at for at in order if ranking.totals[at] == total]
        return all(ranking.rows[at] < self._cut_row for at in tied)

    def _drift(self) -> float:
        """Return how far totals of the others may have risen by now.

        A weight moves along a line as its range does, so it moves most at
        one of the ends of what the others have.
        """
        drift = 0.0
        for term, was, now, ends in zip(
            self._terms, self._ends, self._now, self._others_ends, strict=True
        ):
            if was != now:
                factors = np.array([np.min(term.factor), np.max(term.factor)])
                drift += max(
                    float(factor) * (_at(raw, now) - _at(raw, was))
                    for raw in ends
                    for factor in factors
                )
        return drift


def _ends(term: Term, values: Any) -> _Ends:
    """Return the range of raw weights under the weigher's own bounds."""
    low, high = term.weigher.minval, term.weigher.maxval
    return (
        float(values.min()) if low is None else low,
        float(values.max()) if high is None else high,
    )


def _at(raw: float, ends: _Ends) -> float:
    """Return a normalised weight, 0 where nobody differs."""
    low, high = ends
    return 0.0 if high == low else (raw - low) / (high - low)
