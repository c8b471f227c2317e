"""Raw weights of all hosts for one shape of requests, as a matrix.

Normalised as :mod:`weigh` does it, to the last bit: the same operations on
each number, in the same order.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.columns.view import TableView
from scheduler_service.model import Request
from scheduler_service.pipeline.standing import Standing
from scheduler_service.pipeline.weigh import Ranking, multipliers, raw_weights
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher

_Rows = np.ndarray[Any, Any]
_UNBOUNDED = (None, None)


class Unfit(Exception):
    """A weigher's weights cannot be followed row by row."""


class _Range(NamedTuple):
    """Lowest and highest raw weights of all that pass, float64[k, 1] each.

    :ivar span: their difference, 1 where there is none
    :ivar idle: the weighers for which nobody differs
    :ivar low_alone: bool[k, 1], whether nothing keeps the lowest where it is
        but a row that is kept; likewise the highest
    """

    low: Floats
    high: Floats
    span: Floats
    idle: list[int]
    low_alone: np.ndarray[Any, Any]
    high_alone: np.ndarray[Any, Any]


class Weights:
    """Raw weights, float64[k, n], and the bounds of the rows not kept.

    :raises Unfit: a weigher cannot be followed row by row
    """

    def __init__(
        self,
        table: HostTable,
        request: Request,
        settings: Settings,
        weighers: Sequence[Weigher],
    ) -> None:
        self._settings = settings
        self._weighers: list[Weigher] = []
        raws, times = [], []
        for weigher in weighers:
            multiplier = multipliers(weigher, table, settings)
            if multiplier is None:
                continue
            raw = _whole(weigher, table, request, settings)
            if raw is None:
                continue
            self._weighers.append(weigher)
            raws.append(raw)
            times.append(weigher.sign * multiplier)
        count = len(raws)
        self._raw = np.array(raws).reshape(count, len(table))
        self._times = _times(times, len(table))
        self._least = self._times.min(axis=1).tolist()
        self._most = self._times.max(axis=1).tolist()
        self._rows_only = [
            at for at, one in enumerate(self._weighers) if one.depends == 'row'
        ]
        self._names = [one.name for one in self._weighers]
        self._was = self._now = ([0.0] * count, [0.0] * count)
        self._low, self._high = np.zeros(count), np.zeros(count)
        self._ends = [(0.0, 0.0)] * count
        self._drift: float | None = None
        self._bounded = {
            at: (one.minval, one.maxval)
            for at, one in enumerate(self._weighers)
            if one.minval is not None or one.maxval is not None
        }
        # The raw weights of the rows that are ranked again and again.
        self._near = np.zeros((count, 0))
        # Of all that pass, as they were ranked last.
        self._range: _Range | None = None
        # Row -> (where it is among those gathered, its raw weights by now).
        self._late: dict[int, tuple[int, Sequence[float]]] = {}

    def start(self, rows: _Rows) -> Floats:
        """Return the totals of all rows that pass, and remember the range."""
        if not len(rows):
            return np.zeros(0)
        count = len(self._weighers)
        self._low = np.full(count, np.inf)
        self._high = np.full(count, -np.inf)
        self.gather(rows)
        totals = self.rank(rows, len(rows)).totals
        self._was = self._now
        return totals

    def gather(self, rows: _Rows) -> None:
        """Have the raw weights at hand of the rows to be ranked next."""
        self._write()
        # Of the two ways to cut columns out, the one that keeps their order
        # in memory: sums over weighers are then added one after the other.
        self._near = self._raw.take(rows, axis=1)

    def gather_again(self, rows: _Rows, at_of: Mapping[int, int]) -> None:
        """Have the raw weights at hand of rows that weigh otherwise now.

        :param at_of: where each row gathered is among them
        """
        self._write()
        changed = [row for row in rows.tolist() if row in at_of]
        where = [at_of[row] for row in changed]
        self._near[:, where] = self._raw[:, changed]

    def bound(self, others: _Rows) -> None:
        """Note the highest and lowest raw weights of rows not kept."""
        if len(others):
            raw = self._raw[:, others]
            self._low, self._high = raw.min(axis=1), raw.max(axis=1)
        else:
            self._low = np.full(len(self._weighers), np.inf)
            self._high = np.full(len(self._weighers), -np.inf)
        ends = zip(self._low.tolist(), self._high.tolist(), strict=True)
        self._ends = list(ends)
        self._drift = self._range = None

    def weigh_again(
        self, view: TableView, rows: _Rows, new: _Rows, request: Request
    ) -> bool:
        """Take in rows that changed; whether one of *new* was at a bound.

        :param new: of the rows, those that were not kept
        """
        self._write()
        bounding = False
        if len(new):
            left = self._raw[:, new]
            bounding = bool(
                (left.max(axis=1) >= self._high).any()
                or (left.min(axis=1) <= self._low).any()
            )
        self._raw[:, rows] = self.look(view, rows, request)
        return bounding

    def look(self, view: TableView, rows: _Rows, request: Request) -> Floats:
        """Return the raw weights of rows as a view has them, [k, m]."""
        self._write()
        found: Floats = self._raw[:, rows]
        for at in self._rows_only:
            weigher = self._weighers[at]
            raw = raw_weights(
                weigher, view, slice(None), request, self._settings
            )
            found[at] = weigher.nothing if raw is None else raw
        return found

    @property
    def ends(self) -> object:
        """The ranges of the last ranking; the same as long as they hold."""
        return self._range

    def foresee(
        self, rows: _Rows, raw: Floats
    ) -> Iterable[tuple[bool, float, list[float]]]:
        """Return what rows would add up to with other raw weights, [k, m].

        Of each row, whether it is sure that the ranges would hold, the total
        and its parts.
        """
        self._write()
        ends = self._range
        assert ends is not None
        parts = self._parts(raw, rows, ends)
        # As NumPy adds them in a ranking: one after the other.
        totals = functools.reduce(operator.add, parts, np.zeros(len(rows)))
        before = self._raw[:, rows]
        alone = ((before == ends.low) & ends.low_alone) | (
            (before == ends.high) & ends.high_alone
        )
        inside = (ends.low <= raw) & (raw <= ends.high)
        holds = ((before == raw) | (inside & ~alone)).all(axis=0)
        holds &= np.isfinite(totals)
        return zip(
            holds.tolist(), totals.tolist(), parts.T.tolist(), strict=True
        )

    def put_foreseen(self, row: int, at: int, raw: Sequence[float]) -> None:
        """Set the raw weights of a row that leave the ranges what they are.

        :param at: where it is among the rows gathered
        """
        self._late[row] = at, raw

    def _write(self) -> None:
        """Write down what was foreseen and came."""
        if not self._late:
            return
        rows = [*self._late]
        where = [at for at, _ in self._late.values()]
        raw = np.array([raw for _, raw in self._late.values()]).T
        self._late.clear()
        self._raw[:, rows] = raw
        self._near[:, where] = raw

    def put(
        self, row: int, raw: Sequence[float], at: int | None
    ) -> tuple[float, list[float]] | None:
        """Set the raw weights of a row that is kept, k floats.

        :param at: where it is among the rows gathered, None: it is not
        :return: its total by now and the parts of it; None where the range
            of a weigher may be another
        """
        self._write()
        self._raw[:, row] = raw
        if at is None:
            return None
        before: list[float] = self._near[:, at].tolist()
        self._near[:, at] = raw
        ends = self._range
        if ends is None or not self._holds(before, raw):
            return None
        found = self._parts(np.array([raw]).T, np.array([row]), ends)
        parts: list[float] = found[:, 0].tolist()
        total = functools.reduce(operator.add, parts, 0.0)
        return (total, parts) if math.isfinite(total) else None

    def _holds(self, before: Sequence[float], raw: Sequence[float]) -> bool:
        """Whether the ranges hold though a row gathered weighs otherwise."""
        lows, highs = self._now
        for k, (old, new) in enumerate(zip(before, raw, strict=True)):
            if old == new:
                continue
            low, high = lows[k], highs[k]
            if not low <= new <= high:
                return False
            # It was one of those at the end: is there another?
            minval, maxval = self._bounded.get(k, _UNBOUNDED)
            other_low, other_high = self._ends[k]
            if old == low not in (minval, other_low) and (
                self._near[k].min() != low
            ):
                return False
            if old == high not in (maxval, other_high) and (
                self._near[k].max() != high
            ):
                return False
        return True

    def rank(self, rows: _Rows, passed: int) -> Ranking:
        """Return the ranking of the rows gathered among all that pass."""
        if not self._weighers:
            return Ranking(rows, np.zeros(len(rows)), [], passed)
        self._write()
        ends = self._find_ends()
        parts = self._parts(self._near, rows, ends)
        totals = np.add.reduce(parts, axis=0)
        named = [
            (at, name)
            for at, name in enumerate(self._names)
            if at not in ends.idle
        ]
        if np.isfinite(totals).all():
            return Standing(
                rows, totals, [], passed, matrix=parts, named=named
            )
        said = [(name, parts[at]) for at, name in named]
        return Ranking(rows, totals, said, passed)

    def _find_ends(self) -> _Range:
        """Find the range of all that pass, and remember it."""
        low = np.minimum(np.minimum.reduce(self._near, axis=1), self._low)
        high = np.maximum(np.maximum.reduce(self._near, axis=1), self._high)
        low_alone, high_alone = low != self._low, high != self._high
        for at, (minval, maxval) in self._bounded.items():
            if minval is not None:
                low[at], low_alone[at] = minval, False
            if maxval is not None:
                high[at], high_alone[at] = maxval, False
        now = low.tolist(), high.tolist()
        if self._range is not None and now == self._now:
            return self._range
        self._now, self._drift = now, None
        idle = np.flatnonzero(low == high).tolist()
        span = high - low
        span[idle] = 1.0
        self._range = _Range(
            low[:, None],
            high[:, None],
            span[:, None],
            idle,
            low_alone[:, None],
            high_alone[:, None],
        )
        return self._range

    def _parts(self, raw: Floats, rows: _Rows, ends: _Range) -> Floats:
        """Return what each weigher adds for rows of raw weights, [k, m]."""
        times = self._times
        if times.shape[1] > 1:
            times = times.take(rows, axis=1)
        parts = raw - ends.low
        parts /= ends.span
        parts *= times
        for at in ends.idle:
            parts[at] = 0.0
        return parts

    def drift(self) -> float:
        """Return how far totals of rows not kept may have risen by now.

        A weight moves along a line as its range does, so it is at one of the
        ends that it moves most.
        """
        if self._drift is None:
            self._drift = self._drifted()
        return self._drift

    def _drifted(self) -> float:
        drift = 0.0
        for at, (old_low, old_high, low, high) in enumerate(
            zip(*self._was, *self._now, strict=True)
        ):
            if old_low != low or old_high != high:
                drift += max(
                    times * (_at(raw, low, high) - _at(raw, old_low, old_high))
                    for raw in self._ends[at]
                    for times in (self._least[at], self._most[at])
                )
        return drift


def _at(raw: float, low: float, high: float) -> float:
    """Return a normalised weight, 0 where nobody differs."""
    return 0.0 if high == low else (raw - low) / (high - low)


def _whole(
    weigher: Weigher, table: HostTable, request: Request, settings: Settings
) -> Floats | None:
    """Return the raw weights of all hosts; None: no opinion on this shape."""
    raw = raw_weights(weigher, table, slice(None), request, settings)
    if raw is None and weigher.depends in ('topology', 'request'):
        return None
    if weigher.depends not in ('row', 'topology'):
        raise Unfit(weigher.name)
    if raw is None:
        return np.full(len(table), weigher.nothing)
    if weigher.depends == 'topology' and raw.min() == raw.max():
        # Nobody will ever differ.
        return None
    return raw.astype(np.float64)


def _times(times: Sequence[Any], count: int) -> Floats:
    """Return multipliers, float64[k, 1], or [k, n] where hosts differ."""
    if all(isinstance(one, float) for one in times):
        return np.array(times, np.float64).reshape(len(times), 1)
    return np.array([np.broadcast_to(np.asarray(one), count) for one in times])
