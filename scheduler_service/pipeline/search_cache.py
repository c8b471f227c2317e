"""A cache across requests, so that searches look at fewer hosts.

A search with this cache has the same result as a search without it, to the
last bit. The table's log of changes keeps the cache up to date.

* Which filter rejects each host: requests whose filters say the same about
  every host share one :class:`FirstRejections`.
* The leaders, the hosts that weigh most whatever a request's filters leave.
  How much a host weighs depends on the request only through the ranges of
  raw weights of the hosts that passed: they stretch the normalised weights.
  Of all hosts about a thousand leaders are kept whose weights over all hosts
  are the highest, and those at the ends of each weigher's range. A request
  weighs the leaders that passed, and works out how much another host can
  weigh at most.

All of it belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.pipeline.filtering import (
    COMPARISONS,
    MASK,
    ROWS,
    Step,
    is_counted,
)
from scheduler_service.pipeline.search import HostSearch
from scheduler_service.pipeline.weighing import (
    Ranking,
    Term,
    normalised,
    summed,
)
from scheduler_service.time_slice import Counts

_MIN_HOSTS = 20_000
# A request for more of the best than this looks at all hosts.
_MOST_WANTED = 64
_MOST_STEPS = 255
# Up to this number of passing hosts all are weighed: leaders save nothing.
_FEW = 64
_MOST_LEADERS = 16


class _Kept:
    """The cache of one table."""

    def __init__(self) -> None:
        self.rejections = RejectionCache()
        self._leaders: dict[Any, Leaders] = {}

    def leaders(self, table: HostTable, terms: Sequence[Term]) -> Leaders:
        """Return the leaders under a plan's terms, up to date."""
        key = tuple(
            [
                (
                    id(raw),
                    factor if isinstance(factor, float) else id(factor),
                )
                for _, factor, raw in terms
            ]
        )
        leaders = self._leaders.get(key)
        if leaders is None:
            if len(self._leaders) >= _MOST_LEADERS:
                del self._leaders[next(iter(self._leaders))]
            leaders = self._leaders[key] = Leaders(table, terms)
        else:
            leaders.refresh(table)
        return leaders


class SearchCache:
    """Makes searches that use the results of earlier searches.

    :ivar min_hosts: smaller tables are searched without the cache, which
        takes no longer
    :ivar hits: rankings made of leaders or of few hosts
    :ivar misses: rankings for which all hosts were weighed
    """

    def __init__(self, min_hosts: int = _MIN_HOSTS) -> None:
        self.hits = 0
        self.misses = 0
        self.min_hosts = min_hosts

    def search(self, search: HostSearch, best: int) -> CachedSearch | None:
        """Return a search; None: all hosts have to be looked at.

        None where a filter runs each time, or many of the best are needed.

        :param search: one without the cache
        :param best: how many of the best hosts are looked at; 0: any number
        """
        steps, table = search.steps, search.table
        if not 0 < best <= _MOST_WANTED or len(steps) >= _MOST_STEPS:
            return None
        if any(each_time for _, _, _, each_time in steps):
            return None
        kept = table.load.memoize(('search cache', id(self)), _Kept)
        return CachedSearch(self, kept, search, best)


class CachedSearch:
    """Filters and weighs for each instance of a request in turn.

    :ivar plan: for the first instance
    """

    def __init__(
        self, cache: SearchCache, kept: _Kept, search: HostSearch, best: int
    ) -> None:
        self.plan = search.plan
        self._cache = cache
        self._kept = kept
        self._search = search
        self._best = best
        # Rows that steps of this request named, and that would pass otherwise.
        self._gone = np.empty(0, np.intp)
        self._rejections = kept.rejections.get(search.table, search.steps)
        self._judge()

    def _judge(self) -> None:
        """Set the first step that rejects each host, and count hosts by it.

        With the steps that name a few hosts for this request.
        """
        rejections, search = self._rejections, self._search
        first, counts = rejections.first, np.array(rejections.counts)
        named = [
            (index, verdict)
            for index, (_, form, verdict, _) in enumerate(search.steps)
            if form == ROWS and verdict is not None
        ]

        def move(rows: Rows, steps: Any) -> None:
            counts[:] += np.bincount(steps, minlength=len(counts))
            counts[:] -= np.bincount(first[rows], minlength=len(counts))
            first[rows] = steps

        if named or len(self._gone):
            first = first.copy()
            move(self._gone, np.zeros(len(self._gone), np.uint8))
        for index, verdict in named:
            rows = np.unique(verdict.rows)
            before = first[rows]
            if verdict.passes:
                np.minimum(first, index, out=first)
                counts[index] = counts[index:].sum()
                counts[index + 1 :] = 0
                move(rows, before)
            else:
                move(rows, np.minimum(before, index))
        if named and search.request.num_instances > 1:
            out = first < rejections.first
            out[self._gone] = True
            self._gone = np.flatnonzero(out)
        self._first, self._counts = first, counts.tolist()
        self._left = self._counts[rejections.passing]

    def ranking(self, index: int = 0) -> Ranking | None:
        """Return the ranking for an instance; None: no host passes.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a weigher failed
        """
        if not self._left:
            return None
        search, first = self._search, self._first
        passing = self._rejections.passing
        if self._left <= _FEW:
            self._cache.hits += 1
            rows = np.flatnonzero(first == passing)
            return search.weighing.rank_rows(
                search.table, rows, search.request, search.terms
            )
        ranking = self._of_leaders(first, passing)
        if ranking is not None:
            self._cache.hits += 1
            return ranking
        self._cache.misses += 1
        return search.weighing.rank(
            search.table, first == passing, search.request, search.terms
        )

    def next(self, row: int, index: int) -> Ranking | None:
        """Return the ranking for the next instance.

        :param row: host of the previous instance
        :param index: of the next instance; past the last for alternates
        :raises FilterFault: a filter or weigher failed
        """
        self._search.advance(index)
        self._rejections.refresh(self._search.table)
        self._judge()
        return self.ranking(index)

    def _of_leaders(self, first: Any, passing: int) -> Ranking | None:
        table, terms = self._search.table, self._search.terms
        if any(raw is None for _, _, raw in terms):
            return None
        leaders = self._kept.leaders(table, terms)

        def passed(rows: Rows) -> Any:
            return first.take(rows) == passing

        ranking = leaders.rank(passed, self._left, self._best)
        if ranking is None and leaders.choose_if_aged(table):
            ranking = leaders.rank(passed, self._left, self._best)
        return ranking

    def filter(self) -> Counts:
        """Return the counts as a pass over all hosts makes them.

        They are those for the present instance.
        """
        left = len(self._search.table)
        counts: Counts = []
        for step, rejected in zip(
            self._search.steps, self._counts, strict=False
        ):
            if not is_counted(step):
                continue
            before, left = left, left - rejected
            counts.append((step[0].name, before, left))
            if not left:
                break
        return counts


Indexes = np.ndarray[Any, np.dtype[np.uint8]]
# Limits of the cache, as a number of rejections and in bytes: the least
# recently used are dropped.
_MOST_KEPT = 4096
_MOST_BYTES = 96 * 2**20


class FirstRejections:
    """The first step of a plan that rejects each host.

    Steps that name a few hosts for one request are not part of it.

    :param by_masks: uint8[n], the same for the steps that do not follow the
        load of hosts; not to be written to
    :ivar first: uint8[n], index of the step; the number of steps where a
        host passes all of them
    :ivar passing: the number of steps
    :ivar counts: hosts by value of ``first``
    """

    def __init__(
        self, table: HostTable, steps: Sequence[Step], by_masks: Indexes
    ) -> None:
        self.passing = len(steps)
        # The arrays of a key have to stay as long as its entry: otherwise a
        # new array could get the identity of a freed array.
        self._steps = steps
        self._by_masks = by_masks
        # The last step first, so that earlier ones overwrite it.
        self._comparisons = [
            (index, comparison)
            for index, (_, form, verdict, _) in enumerate(steps)
            if form == COMPARISONS
            for comparison in verdict or ()
        ][::-1]
        self.first = by_masks
        self.counts: list[int] = []
        self._position = 0
        self._evaluate_all(table)

    def refresh(self, table: HostTable) -> None:
        """Evaluate the hosts again whose load changed."""
        changes = table.load.changes
        if changes.end == self._position:
            return
        rows = changes.since(self._position)
        if rows is None or len(rows) > len(table) // 4 + 1:
            self._evaluate_all(table)
            return
        self._position = changes.end
        before, after = self.first.take(rows), self._evaluated(rows)
        changed = np.flatnonzero(before != after)
        if not len(changed):
            return
        self.first[rows] = after
        # A row that changed several times counts once.
        _, once = np.unique(rows[changed], return_index=True)
        for at in changed[once].tolist():
            self.counts[before[at]] -= 1
            self.counts[after[at]] += 1

    def _evaluate_all(self, table: HostTable) -> None:
        self._position = table.load.changes.end
        self.first = self._evaluated(slice(None))
        counts = np.bincount(self.first, minlength=self.passing + 1)
        self.counts = counts.tolist()

    def _evaluated(self, rows: Any) -> Indexes:
        """Return ``first`` of some rows, or of all, as of now."""
        by_masks = self._by_masks[rows]
        first = np.full(len(by_masks), self.passing, np.uint8)
        for index, comparison in self._comparisons:
            first[~comparison.at(rows)] = index
        evaluated: Indexes = np.minimum(first, by_masks)
        return evaluated


class RejectionCache:
    """Rejections by what they are made of, for one table."""

    def __init__(self) -> None:
        self._kept: dict[Any, FirstRejections] = {}
        # Keyed by masks in their places; the masks are held, so that no other
        # array gets the same identity.
        self._by_masks: dict[Any, tuple[Indexes, list[Any]]] = {}

    def get(self, table: HostTable, steps: Sequence[Step]) -> FirstRejections:
        """Return the rejections by a plan's steps, up to date."""
        key = tuple([_identity(form, v) for _, form, v, _ in steps])
        rejections = self._kept.pop(key, None)
        if rejections is None:
            by_masks = self._first_by_masks(len(table), steps)
            rejections = FirstRejections(table, steps, by_masks)
            _make_room(self._kept, len(table))
        else:
            rejections.refresh(table)
        self._kept[key] = rejections
        return rejections

    def _first_by_masks(self, hosts: int, steps: Sequence[Step]) -> Indexes:
        """Return the first step with a mask that rejects each host."""
        masks = [
            (index, verdict)
            for index, (_, form, verdict, _) in enumerate(steps)
            if form == MASK and verdict is not None
        ]
        key = len(steps), *((index, id(mask)) for index, mask in masks)
        kept = self._by_masks.get(key)
        if kept is None:
            first = np.full(hosts, len(steps), np.uint8)
            for index, mask in reversed(masks):
                first[~mask] = index
            _make_room(self._by_masks, hosts)
            kept = self._by_masks[key] = first, masks
        return kept[0]


def _make_room(kept: dict[Any, Any], hosts: int) -> None:
    """Drop what was used the longest time ago."""
    most = min(_MOST_KEPT, max(16, _MOST_BYTES // max(hosts, 1)))
    while len(kept) >= most:
        del kept[next(iter(kept))]


def _identity(form: int, verdict: Any) -> Any:
    if verdict is None or form not in (MASK, COMPARISONS):
        return None
    if form == MASK:
        return id(verdict)
    return tuple(
        [
            (
                id(column),
                operator,
                id(value) if isinstance(value, np.ndarray) else value,
            )
            for column, operator, value in verdict
        ]
    )


_LEADERS = 768
# Hosts at each end of a weigher's range.
_EXTREMES = 48
# After this number of changes leaders that do not suffice are chosen anew.
_AGED = 256
# The number of leaders, after changes, at which they are chosen anew as well.
_MOST_CHOSEN = 4 * _LEADERS
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

    :param terms: with raw weights that are kept up to date
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
        if len(self._rows) + len(came) > _MOST_CHOSEN:
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

        :param passed: predicate of rows, int64[m] -> bool[m]
        :param count: how many hosts passed, at least one
        :param best: how many of the best have to be certain
        :return: None where another host may be among the best
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
            span = _extremes(term, leads)
            self._ranges.append(span)
            part = normalised(term.raw, span.low, span.high, term.factor)
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
        total = 0.0
        for term, value, span in zip(
            self._terms, raw, self._ranges, strict=True
        ):
            if value < span.others_low or value > span.others_high:
                return True
            factor = term.factor
            if not isinstance(factor, float):
                factor = factor.item(row)
            part = normalised(value, span.low, span.high, factor)
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
        weighed = []
        for at, (weigher, factor, _) in enumerate(self._terms):
            if not isinstance(factor, float):
                factor = self._factors[at].take(leads)
            span = ends[0][at], ends[1][at]
            weighed.append((weigher.name, raw[at], span, factor))
        totals, parts = summed(weighed, len(rows))
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
            (span.low, span.high) == pair
            for span, pair in zip(
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
        for term, span, low, high in zip(
            self._terms, self._ranges, *ends, strict=True
        ):
            factors = _least_and_most(term.factor)
            size, own = span.high - span.low, high - low
            if own:
                moved = (span.low - low) / own
                constant += max(factor * moved for factor in factors)
                scale += max(map(abs, factors)) * (1 + abs(moved))
            if size:
                # The least and the most that p is for hosts that passed.
                least = max(low, span.others_low) - span.low
                most = min(high, span.others_high) - span.low
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
