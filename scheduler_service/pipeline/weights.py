"""Raw weights of all hosts for one shape of requests, as a matrix.

Normalised as :mod:`weigh` does it, to the last bit: the same operations on
each number, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.columns.view import RowsOf
from scheduler_service.model import Request
from scheduler_service.pipeline.weigh import Ranking, multipliers, raw_weights
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher

_Rows = np.ndarray[Any, Any]


class Unfit(Exception):
    """A weigher's weights cannot be followed row by row."""


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
        self._was = self._now = ([0.0] * count, [0.0] * count)
        self._low, self._high = np.zeros(count), np.zeros(count)

    def start(self, rows: _Rows) -> Floats:
        """Return the totals of all rows that pass, and remember the range."""
        if not len(rows):
            return np.zeros(0)
        count = len(self._weighers)
        self._low = np.full(count, np.inf)
        self._high = np.full(count, -np.inf)
        totals = self.rank(rows, len(rows)).totals
        self._was = self._now
        return totals

    def bound(self, others: _Rows) -> None:
        """Note the highest and lowest raw weights of rows not kept."""
        if len(others):
            raw = self._raw[:, others]
            self._low, self._high = raw.min(axis=1), raw.max(axis=1)
        else:
            self._low = np.full(len(self._weighers), np.inf)
            self._high = np.full(len(self._weighers), -np.inf)

    def weigh_again(
        self, view: RowsOf, rows: _Rows, new: _Rows, request: Request
    ) -> bool:
        """Take in rows that changed; whether one of *new* was at a bound.

        :param new: of the rows, those that were not kept
        """
        bounding = False
        if len(new):
            left = self._raw[:, new]
            bounding = bool(
                (left.max(axis=1) >= self._high).any()
                or (left.min(axis=1) <= self._low).any()
            )
        self._raw[:, rows] = self.look(view, rows, request)
        return bounding

    def look(self, view: RowsOf, rows: _Rows, request: Request) -> Floats:
        """Return the raw weights of rows as a view has them, [k, m]."""
        found: Floats = self._raw[:, rows]
        for at in self._rows_only:
            weigher = self._weighers[at]
            raw = raw_weights(
                weigher, view, slice(None), request, self._settings
            )
            found[at] = weigher.nothing if raw is None else raw
        return found

    def put(self, row: int, raw: Floats) -> None:
        """Set the raw weights of a row that is kept, float64[k]."""
        self._raw[:, row] = raw

    def rank(self, rows: _Rows, passed: int) -> Ranking:
        """Return the ranking of some rows among all that pass."""
        if not self._weighers:
            return Ranking(rows, np.zeros(len(rows)), [], passed)
        raw = self._raw[:, rows]
        low = np.minimum(raw.min(axis=1), self._low)
        high = np.maximum(raw.max(axis=1), self._high)
        for at, one in enumerate(self._weighers):
            if one.minval is not None:
                low[at] = one.minval
            if one.maxval is not None:
                high[at] = one.maxval
        self._now = low.tolist(), high.tolist()
        span = high - low
        idle = span == 0.0
        span[idle] = 1.0
        times = self._times
        if times.shape[1] > 1:
            times = times[:, rows]
        parts = (raw - low[:, None]) / span[:, None] * times
        if idle.any():
            parts[idle] = 0.0
        named = [
            (one.name, parts[at])
            for at, one in enumerate(self._weighers)
            if not idle[at]
        ]
        return Ranking(rows, np.add.reduce(parts, axis=0), named, passed)

    def drift(self) -> float:
        """Return how far totals of rows not kept may have risen by now.

        A weight moves along a line as its range does, so it is at one of the
        ends that it moves most.
        """
        if self._now == self._was:
            return 0.0
        ends = list(zip(self._low.tolist(), self._high.tolist(), strict=True))
        drift = 0.0
        for at, raws in enumerate(ends):
            before = self._was[0][at], self._was[1][at]
            now = self._now[0][at], self._now[1][at]
            if before != now:
                drift += max(
                    times * (_at(raw, *now) - _at(raw, *before))
                    for raw in raws
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
