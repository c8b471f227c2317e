"""A search that looks at what earlier requests left, and at what changed.

It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.pipeline.cache.leaders import Leaders
from scheduler_service.pipeline.cache.verdicts import VerdictCache
from scheduler_service.pipeline.filtering import ROWS, Funnel
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.search import SearchPlan
from scheduler_service.pipeline.weighing import Term

_MIN_HOSTS = 20_000
# A request that wants more of the best than this looks at all hosts.
_MOST_WANTED = 64
_MOST_STEPS = 255
# So many passing hosts are weighed as they are.
_FEW = 64
_MOST_LEADERS = 16


class _Kept:
    """What is kept for one table: it goes when the table goes."""

    def __init__(self) -> None:
        self.verdicts = VerdictCache()
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
    """Makes searches that use what earlier ones left.

    :param min_hosts: smaller tables are searched without it, which takes no
        longer
    :ivar hits: rankings made of leaders or of few hosts
    :ivar misses: rankings for which all hosts were weighed
    """

    def __init__(self, min_hosts: int = _MIN_HOSTS) -> None:
        self.hits = 0
        self.misses = 0
        self._min_hosts = min_hosts

    def search(self, plan: SearchPlan, best: int) -> CachedSearch | None:
        """Return a search; None where all hosts have to be looked at.

        That is where a filter is asked each time, and where many of the best
        hosts are wanted.

        :param best: how many of the best hosts are looked at
        """
        steps, table = plan.steps, plan.table
        if len(table) < self._min_hosts:
            return None
        if best > _MOST_WANTED or len(steps) >= _MOST_STEPS:
            return None
        if any(each_time for _, _, _, each_time in steps):
            return None
        kept = table.load.memoize(('search cache', id(self)), _Kept)
        return CachedSearch(self, kept, plan, best)


class CachedSearch:
    """Filters and weighs for each instance of a request in turn.

    :ivar funnel: counts of the pass for the first instance
    """

    def __init__(
        self, cache: SearchCache, kept: _Kept, plan: SearchPlan, best: int
    ) -> None:
        self._cache = cache
        self._kept = kept
        self._plan = plan
        self._best = best
        # What steps of earlier instances named: rows that are out, and the
        # only ones that are in.
        self._out: set[int] = set()
        self._only: Rows | None = None
        self._verdicts = kept.verdicts.get(plan.table, plan.steps)
        self._counts, self._left = self._count()
        self.funnel = self._funnel()

    def ranking(self, index: int = 0) -> Ranking | None:
        """Return the ranking for an instance; None: no host passes.

        :param index: of the instance; past the last one for alternates
        :raises FilterFault: a weigher failed
        """
        if not self._left:
            return None
        first, passing = self._verdicts.first, self._verdicts.passing
        out = [row for row in self._out if first[row] == passing]
        first[out] = 0
        try:
            return self._ranked(first, passing)
        finally:
            first[out] = passing

    def next(self, row: int, index: int) -> Ranking | None:
        """Return the ranking for the next instance.

        :param row: where the one before was put
        :param index: of the next; past the last one for alternates
        :raises FilterFault: a filter or weigher failed
        """
        self._plan.advance(index)
        self._verdicts.refresh(self._plan.table)
        self._counts, self._left = self._count()
        return self.ranking(index)

    def _ranked(self, first: Any, passing: int) -> Ranking | None:
        """Rank the hosts that pass, those of this request's rows alone."""
        plan, rows = self._plan, self._only
        if rows is not None:
            rows = rows[first[rows] == passing]
        elif self._left <= _FEW:
            rows = np.flatnonzero(first == passing)
        if rows is not None:
            self._cache.hits += 1
            return plan.weighing.rank_rows(
                plan.table, rows, plan.request, plan.terms
            )
        ranking = self._of_leaders(first, passing)
        if ranking is not None:
            self._cache.hits += 1
            return ranking
        self._cache.misses += 1
        return plan.weighing.rank(
            plan.table, first == passing, self._left, plan.request, plan.terms
        )

    def _of_leaders(self, first: Any, passing: int) -> Ranking | None:
        table, terms = self._plan.table, self._plan.terms
        if any(raw is None for _, _, raw in terms):
            return None
        leaders = self._kept.leaders(table, terms)

        def passed(rows: Rows) -> Any:
            return first.take(rows) == passing

        ranking = leaders.rank(passed, self._left, self._best)
        if ranking is None and leaders.choose_if_aged(table):
            ranking = leaders.rank(passed, self._left, self._best)
        return ranking

    def _count(self) -> tuple[list[int], int]:
        """Return hosts by the step that rejects them, and how many pass.

        With the steps that name a few hosts for this request.
        """
        counts = list(self._verdicts.counts)
        self._count_out(counts, self._out, 0)
        if self._only is not None:
            self._keep_only(counts, self._only, 0)
        for index, (_, form, verdict, _) in enumerate(self._plan.steps):
            if form != ROWS or verdict is None:
                continue
            rows = np.unique(verdict.rows)
            if verdict.passes:
                self._keep_only(counts, rows, index)
                continue
            if self._only is not None:
                rows = np.intersect1d(rows, self._only)
            out = set(rows.tolist()) - self._out
            self._count_out(counts, out, index)
            self._out |= out
        return counts, counts[self._verdicts.passing]

    def _count_out(self, counts: list[int], rows: Any, index: int) -> None:
        """Count that a step rejects rows which came as far as to it."""
        first = self._verdicts.first
        for row in rows:
            later = first.item(row)
            if later > index:
                counts[later] -= 1
                counts[index] += 1

    def _keep_only(self, counts: list[int], rows: Rows, index: int) -> None:
        """Count that a step rejects all but some rows."""
        if self._only is not None:
            rows = np.intersect1d(rows, self._only)
        self._only = rows
        kept = [0] * len(counts)
        for row in rows.tolist():
            if row not in self._out:
                kept[self._verdicts.first.item(row)] += 1
        for later in range(index + 1, len(counts)):
            counts[index] += counts[later] - kept[later]
            counts[later] = kept[later]

    def _funnel(self) -> Funnel:
        """Return the counts as a pass over all hosts makes them."""
        left = len(self._plan.table)
        funnel = Funnel(left)
        for (one, _, verdict, _), rejected in zip(
            self._plan.steps, self._counts, strict=False
        ):
            if verdict is None and one.name[0].islower():
                continue
            before, left = left, left - rejected
            funnel.counts.append((one.name, before, left))
            if not left:
                break
        return funnel
