"""Weigh the hosts that passed, and rank them: the best, and the choice.

Any thread may call this, each on its own table. A ranking belongs to the
thread that made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
    Sequence,
)
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Floats, Mask, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import is_plugin
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher, Weigher

T = TypeVar('T')
# How many of the best an explanation names.
FINALISTS = 5
# Up to this number the best are searched one by one, beyond it by sorting.
_FEW = 16


class Term(NamedTuple):
    """One weigher's part in the weights of a request.

    :ivar factor: sign x multiplier, a float or float64[n] where it differs
        by host
    :ivar raw: raw weights of all hosts, inside the weigher's bounds, [n];
        None: they are computed each time
    """

    weigher: Weigher
    factor: Any
    raw: Any


class Weighing:
    """The configured weighers, in order."""

    def __init__(
        self, weighers: Sequence[Weigher], settings: Settings
    ) -> None:
        self.weighers = tuple(weighers)
        self.has_plugins = any(map(is_plugin, weighers))
        self._settings = settings
        self._key = ('active weighers', id(self))

    def terms(self, table: HostTable, request: Request) -> list[Term]:
        """Return the terms of the weighers with an opinion on the request.

        Raw weights that hold for all of its instances are computed here.

        :raises FilterFault: a weigher failed
        """
        terms = []
        active: list[Term] = table.load.memoize(
            self._key, lambda: list(self._active(table))
        )
        for weigher, factor, raw in active:
            if raw is None:
                try:
                    key = weigher.weight_key(table, request, self._settings)
                except BaseException as fault:
                    errors.raise_named(weigher.name, fault)
                if key is None:
                    continue
                if key is not EACH_TIME:
                    raw = self._kept_weights(weigher, key, table, request)
                    if raw is None:
                        continue
            terms.append(Term(weigher, factor, raw))
        return terms

    def _kept_weights(
        self, weigher: Weigher, key: Any, table: HostTable, request: Request
    ) -> Floats | None:
        """Return raw weights that stay, None where all are equal."""

        def work() -> Floats | None:
            raw = raw_weights(
                weigher, table, slice(None), request, self._settings
            )
            if raw is None or not len(raw) or raw.min() == raw.max():
                return None
            return raw

        return table.topology.keep(('raw weights', weigher.name, key), work)

    def rank(
        self,
        table: HostTable,
        mask: Mask,
        request: Request,
        terms: Sequence[Term],
    ) -> Ranking | None:
        """Return the ranking of the hosts of *mask*, bool[n].

        :param terms: as :meth:`terms` returned them
        :return: None where there are none
        :raises FilterFault: a weigher failed
        """
        count = int(np.count_nonzero(mask))
        if not count:
            return None
        if 2 * count > len(table) > 1:
            ranking = self._rank_all(table, mask, count, terms)
            if ranking is not None:
                return ranking
        return self.rank_rows(table, np.flatnonzero(mask), request, terms)

    def _rank_all(
        self, table: HostTable, mask: Mask, count: int, terms: Sequence[Term]
    ) -> Ranking | None:
        """Rank over whole columns, which costs less than to gather most.

        :return: None: a weigher has to run, or a host that did not pass is at
            the end of a range
        """
        weighed: list[Weighed] = []
        ranges = []
        for weigher, factor, raw in terms:
            ends = None if raw is None else _ends(weigher, raw, mask)
            if ends is None:
                return None
            ranges.append(ends)
            weighed.append((weigher.name, raw, ends, factor))
        totals, parts = summed(weighed, len(table))
        if count < len(table):
            if len(parts) == 1:
                totals = totals.copy()
            totals[~mask] = -np.inf
        rows = table.load.memoize('every row', lambda: np.arange(len(table)))
        return Ranking(rows, totals, parts, count, ranges)

    def rank_rows(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        terms: Sequence[Term],
    ) -> Ranking:
        """Add the weighers' parts; a single host is not weighed."""
        weighed: list[Weighed] = []
        for weigher, factor, raw in terms if len(rows) > 1 else ():
            if raw is not None:
                weights = raw.take(rows)
            else:
                weights = raw_weights(
                    weigher, table, rows, request, self._settings
                )
                if weights is None:
                    continue
            if not isinstance(factor, float):
                factor = factor[rows]
            low, high = weigher.minval, weigher.maxval
            low = np.minimum.reduce(weights) if low is None else low
            high = np.maximum.reduce(weights) if high is None else high
            weighed.append((weigher.name, weights, (low, high), factor))
        totals, parts = summed(weighed, len(rows))
        ranges = [ends for _, _, ends, _ in weighed]
        return Ranking(rows, totals, parts, len(rows), ranges)

    def counts(self, table: HostTable, weigher: Weigher) -> bool:
        """Whether the multiplier of a weigher is not 0 on some host."""
        with errors.naming(weigher.name):
            return _multiplier(weigher, table, self._settings) is not None

    def _active(self, table: HostTable) -> Iterator[Term]:
        """Yield the weighers whose multiplier is not 0, with load columns."""
        for weigher in self.weighers:
            column = None
            with errors.naming(weigher.name):
                multiplier = _multiplier(weigher, table, self._settings)
                if multiplier is None:
                    continue
                if isinstance(weigher, ColumnWeigher):
                    column = weigher.column(table, self._settings)
            yield Term(weigher, weigher.sign * multiplier, column)


def _ends(weigher: Weigher, raw: Floats, mask: Mask) -> tuple[Any, Any] | None:
    """Return the range of raw weights of the hosts of *mask*.

    None where a host outside of it is at one of the ends.
    """
    ends: list[Any] = [weigher.minval, weigher.maxval]
    for end, find in enumerate((raw.argmin, raw.argmax)):
        if ends[end] is None:
            at = find()
            if not mask[at]:
                return None
            ends[end] = raw[at]
    return ends[0], ends[1]


# A weigher's name, raw weights of some hosts, their range, and the factor.
Weighed = tuple[str, Any, tuple[float, float], Any]
# A weigher's name, what it adds to hosts, their raw weights, the range of
# these, and the factor.
Part = tuple[str, Floats, Any, tuple[float, float], Any]


def summed(
    weighed: Iterable[Weighed], hosts: int
) -> tuple[Floats, list[Part]]:
    """Return the totals of hosts, float64[m], and the parts of weighers.

    Weighers for which all hosts are equal have no part.
    """
    totals: Any = None
    parts: list[Part] = []
    for name, raw, ends, factor in weighed:
        part = normalised(raw, *ends, factor)
        if part is None:
            continue
        parts.append((name, part, raw, ends, factor))
        # The first part is not written to.
        if len(parts) == 1:
            totals = part
        elif len(parts) == 2:
            totals = totals + part
        else:
            totals += part
    return np.zeros(hosts) if totals is None else totals, parts


def normalised(raw: Any, low: float, high: float, factor: Any) -> Any:
    """Return factor x normalised weight, float64[m].

    None where all hosts are equal. In this order of operations the best host
    weighs exactly its multiplier.
    """
    if high == low:
        return None
    part = (raw - low if low else raw) / (high - low)
    if not isinstance(factor, float):
        return part * factor
    if factor != 1.0:
        part *= factor
    return part


def raw_weights(
    weigher: Weigher,
    table: HostTable,
    rows: Any,
    request: Request,
    settings: Settings,
) -> Floats | None:
    """Return a weigher's raw weights of rows, finite, inside its own bounds.

    :raises FilterFault: the weigher failed
    """
    try:
        raw = weigher.weigh(table, rows, request, settings)
        if raw is None:
            return None
        if not np.isfinite(raw).all():
            raw = _with_worst(raw, weigher.sign * weigher.multiplier(settings))
    except BaseException as fault:
        errors.raise_named(weigher.name, fault)
    if weigher.minval is not None:
        raw = np.maximum(raw, weigher.minval)
    if weigher.maxval is not None:
        raw = np.minimum(raw, weigher.maxval)
    return raw


def _with_worst(raw: Floats, multiplier: float) -> Floats:
    """Return raw weights, with the worst for hosts without a number."""
    finite = np.isfinite(raw)
    if not finite.any():
        return np.zeros(len(raw))
    worst = raw[finite].min() if multiplier >= 0.0 else raw[finite].max()
    return np.where(finite, raw, worst)


def _multiplier(weigher: Weigher, table: HostTable, settings: Settings) -> Any:
    """Return the multiplier, a float or float64[n]; None: not to be run."""
    key, default = weigher.multiplier_option, weigher.multiplier(settings)
    stated = table.least_stated(key, default, float) if key else None
    if stated is not None:
        return stated
    if default == 0.0 and not weigher.refuses:
        return None
    return float(default)


@dataclasses.dataclass(slots=True)
class Ranking:
    """Hosts that passed the filters, and their weights.

    :ivar rows: int64[m], rows of the table, ascending
    :ivar totals: float64[m], sums of multiplier x normalised weight; minus
        infinity for hosts that did not pass
    :ivar parts: of weighers with an opinion, arrays of the same hosts
    :ivar count: how many hosts passed
    :ivar ranges: the ends of the raw weights, by weigher
    :ivar drawn_from: among how many hosts the last pick was drawn
    """

    rows: Rows
    totals: Floats
    parts: list[Part]
    count: int
    ranges: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    _order: list[int] = dataclasses.field(default_factory=list)
    drawn_from: int = 1

    def best(self, count: int) -> list[int]:
        """Return the *count* best rows, best first; ties in row order."""
        best: list[int] = self.rows.take(self.best_at(count)).tolist()
        return best

    def pick(
        self, settings: Settings, rng: RandomSource, spread: int = 1
    ) -> int:
        """Return the row to take: the best, or one of the best at random.

        :param spread: pick among at least this number of the best
        """
        among = max(settings.host_subset_size, spread)
        if among == 1 and not settings.shuffle_best_same_weighed_hosts:
            return self.rows.item(self.best_at(1)[0])
        if settings.shuffle_best_same_weighed_hosts:
            ties = np.flatnonzero(self.totals == self.totals.max())
            order = [int(self.rows[at]) for at in ties]
            rng.shuffle(order)
            if among > len(order):
                rest = [row for row in self.best(among) if row not in order]
                order += rest
        else:
            order = self.best(among)
        self.drawn_from = len(order)
        return rng.choice(order[:among])

    def add(self, ids: Any, bonus: Mapping[int, float]) -> None:
        """Add what extenders add to the weights.

        :param ids: of all hosts, int64[n]
        :param bonus: by the store id of hosts
        """
        more = np.array([bonus.get(at, 0.0) for at in ids[self.rows].tolist()])
        self.totals = self.totals + more
        self.parts.append(('extenders', more, more, (0.0, 1.0), 1.0))

    def finalists(self, table: HostTable, chosen: int) -> dict[str, Any]:
        """Return the best hosts, best first, and their weights by column.

        And among how many the pick was drawn, if it was.

        :param chosen: row of the host that was picked, which is among them
        """
        best, at = self.best_at(FINALISTS), 0
        drawn: dict[str, Any] = {}
        if self.drawn_from > 1:
            place = int(np.searchsorted(self.rows, chosen))
            best += [place] if place not in best else []
            at = best.index(place)
            drawn['drawn_from'] = self.drawn_from
        index = np.array(best)
        rows = self.rows[index]
        hosts, nodes = (
            table.coded[name].values_at(rows) for name in ('host', 'node')
        )
        finalists = {
            'host': hosts,
            # Mostly they have the same names.
            **({'node': nodes} if nodes != hosts else {}),
            'weight': self.totals[index].tolist(),
            # What each weigher adds follows from these.
            'weighers': {
                name: (
                    raw[index].tolist(),
                    float(ends[0]),
                    float(ends[1]),
                    factor
                    if isinstance(factor, float)
                    else factor[index].tolist(),
                )
                for name, _, raw, ends, factor in self.parts
            },
            'chosen': at,
        }
        return {'finalists': finalists, **drawn}

    def best_at(self, count: int) -> list[int]:
        """Return where the *count* best are in the arrays, best first."""
        count = min(count, self.count)
        if count > len(self._order):
            most = min(FINALISTS, self.count)
            self._order = best_of(self.totals, max(count, most))
        return self._order[:count]


def best_of(totals: Floats, count: int) -> list[int]:
    """Return the indexes of the *count* largest, largest first.

    Ties are broken by index, lowest first.
    """
    if count > _FEW:
        least = np.partition(totals, -count)[-count]
        large = np.flatnonzero(totals >= least)
        order = np.argsort(-totals[large], kind='stable')
        first: list[int] = large[order[:count]].tolist()
        return first
    left = totals
    best: list[int] = []
    for turn in range(count):
        at = int(left.argmax())
        best.append(at)
        if turn + 1 < count:
            left = left.copy() if turn == 0 else left
            left[at] = -np.inf
    return best


class RandomSource(Protocol):
    """The part of ``random.Random`` that the pipeline uses."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to *stop* - 1."""

    def choice(self, items: Sequence[T], /) -> T:
        """Return one of the items."""

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Put the items into another order, in place."""
