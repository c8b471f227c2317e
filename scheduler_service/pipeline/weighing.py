"""Weigh the hosts that passed: normalise, multiply, add.

Any thread may call this, each on its own table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Floats, Mask, Rows
from scheduler_service.columns.metadata import least_number
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME
from scheduler_service.model import Request
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher, Weigher


class Opinion(NamedTuple):
    """A weigher that may change the order of hosts for some request.

    :ivar factor: sign x multiplier, a float or float64[n] where it differs
        by host
    """

    weigher: Weigher
    factor: Any


class RawWeights(NamedTuple):
    """What one weigher says of all hosts, for one request.

    :ivar raw: float64[n], inside the weigher's bounds
    :ivar shared: whether requests with other wishes get the same
    """

    weigher: Weigher
    factor: Any
    raw: Floats
    shared: bool


class Weighing:
    """The configured weighers, in order."""

    def __init__(
        self, weighers: Sequence[Weigher], settings: Settings
    ) -> None:
        self.weighers = tuple(weighers)
        self._settings = settings
        self._key = ('opinions', id(self))

    def rank(
        self, table: HostTable, mask: Mask, count: int, request: Request
    ) -> Ranking | None:
        """Return the ranking of the hosts of *mask*, bool[n].

        :param count: how many of them are true
        :return: None where there are none
        :raises FilterFault: a weigher failed
        """
        if not count:
            return None
        if count == len(table):
            return self._rank(table, np.arange(count), True, request)
        return self.rank_rows(table, np.flatnonzero(mask), request)

    def rank_rows(
        self, table: HostTable, rows: Rows, request: Request
    ) -> Ranking:
        """Return the ranking of some rows, at least one, ascending."""
        return self._rank(table, rows, False, request)

    def _rank(
        self, table: HostTable, rows: Rows, every: bool, request: Request
    ) -> Ranking:
        """Add what each weigher says; one host alone is not weighed.

        :param every: whether *rows* are all of the table's
        """
        totals: Floats | None = None
        parts: list[tuple[str, Floats]] = []
        if len(rows) > 1:
            index: Any = slice(None) if every else rows
            for weigher, factor in self.opinions(table):
                raw = self._raw_of(weigher, table, index, request)
                part = None
                if raw is not None:
                    if not isinstance(factor, float):
                        factor = factor[index]
                    part = weighted(weigher, factor, raw)
                if part is not None:
                    parts.append((weigher.name, part))
                    totals = _added(totals, part, len(parts))
        if totals is None:
            totals = np.zeros(len(rows))
        return Ranking(rows, totals, parts)

    def opinions(self, table: HostTable) -> list[Opinion]:
        """Return the weighers whose multiplier is not 0 on these hosts."""
        opinions: list[Opinion] = table.topology.memoize(
            self._key, lambda: list(self._opinions(table))
        )
        return opinions

    def _opinions(self, table: HostTable) -> Iterator[Opinion]:
        for weigher in self.weighers:
            multiplier = _multiplier(weigher, table, self._settings)
            if multiplier is not None:
                yield Opinion(weigher, weigher.sign * multiplier)

    def raw_weights(
        self, table: HostTable, request: Request
    ) -> list[RawWeights]:
        """Return the raw weights of all hosts, by weigher."""
        weights = []
        for weigher, factor in self.opinions(table):
            raw = self._raw_of(weigher, table, slice(None), request)
            if raw is not None:
                shared = isinstance(weigher, ColumnWeigher)
                weights.append(RawWeights(weigher, factor, raw, shared))
        return weights

    def _raw_of(
        self, weigher: Weigher, table: HostTable, index: Any, request: Request
    ) -> Floats | None:
        """Return raw weights of some rows; what is known is looked up."""
        settings = self._settings
        try:
            if isinstance(weigher, ColumnWeigher):
                column = weigher.column(table, settings)
                return column if isinstance(index, slice) else column[index]
            key = weigher.weight_key(table, request, settings)
        except Exception as fault:
            raise _fault(weigher, fault) from fault
        if key is None:
            return None
        if key is EACH_TIME:
            return raw_weights(weigher, table, index, request, settings)
        memo = table.topology.memoize(
            ('raw weights', weigher.name, key),
            lambda: _unless_equal(
                raw_weights(weigher, table, slice(None), request, settings)
            ),
        )
        raw: Floats | None = memo
        if raw is None or isinstance(index, slice):
            return raw
        of_rows: Floats = raw.take(index)
        return of_rows


def weighted(weigher: Weigher, factor: Any, raw: Floats) -> Floats | None:
    """Return factor x normalised weight, [m]; None where all are equal."""
    low = raw.min() if weigher.minval is None else weigher.minval
    high = raw.max() if weigher.maxval is None else weigher.maxval
    if high == low:
        return None
    # In this order the best weighs exactly its multiplier.
    part: Floats = (raw - low if low else raw) / (high - low)
    if not isinstance(factor, float):
        part = part * factor
    elif factor != 1.0:
        part *= factor
    return part


def _added(totals: Floats | None, part: Floats, count: int) -> Floats:
    """Return the sum of the first *count* parts; parts are not written to."""
    if totals is None:
        return part
    if count == 2:
        return totals + part
    totals += part
    return totals


def raw_weights(
    weigher: Weigher,
    table: HostTable,
    rows: Any,
    request: Request,
    settings: Settings,
) -> Floats | None:
    """Return a weigher's raw weights of rows, inside its own bounds.

    :raises FilterFault: the weigher failed
    """
    try:
        raw = weigher.weigh(table, rows, request, settings)
    except errors.SchedulerError:
        raise
    except Exception as fault:
        raise _fault(weigher, fault) from fault
    if raw is None or (weigher.minval is None and weigher.maxval is None):
        return raw
    if weigher.minval is not None:
        raw = np.maximum(raw, weigher.minval)
    if weigher.maxval is not None:
        raw = np.minimum(raw, weigher.maxval)
    return raw


def _fault(weigher: Weigher, fault: Exception) -> errors.SchedulerError:
    """Return a fault of a weigher as an error that names it."""
    if isinstance(fault, errors.SchedulerError):
        return fault
    return errors.FilterFault(
        f'{weigher.name} failed: {type(fault).__name__}: {fault}',
        filter=weigher.name,
        fault=type(fault).__name__,
    )


def _unless_equal(raw: Floats | None) -> Floats | None:
    """Return None for weights that can never tell two hosts apart."""
    if raw is None or not len(raw) or raw.min() == raw.max():
        return None
    return raw


def _multiplier(weigher: Weigher, table: HostTable, settings: Settings) -> Any:
    """Return the multiplier, a float or float64[n]; None: not to be run."""
    key, default = weigher.multiplier_option, weigher.multiplier(settings)
    if key and table.any_aggregate_has(key):

        def verdict(ids: frozenset[int]) -> float:
            return least_number(table.values_of(ids, key), default, float)

        return table.by_aggregates(verdict)
    if default == 0.0 and not weigher.refuses:
        return None
    return float(default)
