"""Searches hosts for the instances of one request in turn.

A search belongs to the thread of its pipeline.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Topology
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import (
    COMPARISONS,
    ROWS,
    Filtering,
    Step,
    is_counted,
    is_plugin,
)
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import (
    Ranking,
    Term,
    Weighing,
    summed,
)
from scheduler_service.request_filters import short_query
from scheduler_service.time_slice import Counts

# The ends of the raw weights of some hosts.
Range = tuple[float, float]
# How many plans, of 4 kB each, are kept for a table.
_PLANS_KEPT = 2048


@dataclasses.dataclass(slots=True)
class SearchPlan:
    """What filters and weighers say about requests that ask for the same.

    :ivar steps: of the filters, in order
    :ivar terms: of the weighers
    :ivar query: the restrictions of the request filters, for people
    :ivar top: the hosts that weighed most in a pass; None: not kept
    :ivar credit: how likely it is that they will be of use
    :ivar unused: how often they were found since they were of use
    """

    steps: list[Step]
    terms: list[Term]
    query: str
    top: TopHosts | None = None
    credit: int = 0
    unused: int = 0


@dataclasses.dataclass(slots=True)
class _KeptPlans:
    """The plans for one table.

    :ivar reads_caller: whether a filter or weigher may read who asks, or for
        how many instances
    :ivar by_shape: the plan that was used longest ago first
    """

    topology: Topology | None = None
    reads_caller: bool = False
    by_shape: dict[Any, SearchPlan] = dataclasses.field(default_factory=dict)


class HostSearch:
    """Filters and weighs all hosts, for each instance of a request in turn.

    :param bonuses: weights from extenders; None: no extender was called
    :param best: how many of the best hosts are looked at; 0: any number, or
        with *bonuses*
    :ivar steps: of the filters, for the present instance
    :ivar terms: of the weighers
    :raises FilterFault: a filter or weigher failed
    """

    def __init__(
        self,
        filtering: Filtering,
        weighing: Weighing,
        table: HostTable,
        request: Request,
        bonuses: Bonuses | None = None,
        best: int = 0,
    ) -> None:
        self.filtering = filtering
        self.weighing = weighing
        self.table = table
        self.request = request
        self._bonuses = bonuses
        # How many of the best hosts may be taken from the top hosts of a plan.
        self._best = 0
        # bool[n], the hosts that pass for the present instance; None: they are
        # not filtered yet, or the top hosts of the plan stand for them.
        self._mask: Mask | None = None
        self._counts: Counts = []
        if request.shape is None or table.builds:
            self.plan = self._make_plan()
        else:
            self.plan = self._kept_plan(request.shape)
            if (
                request.num_instances == 1
                and len(table) >= _MIN_HOSTS
                and best <= _MOST_BEST
            ):
                self._best = best
        self.steps, self.terms = self.plan.steps, self.plan.terms
        if filtering.has_row_plugins and request.shape is not None:
            self.steps = filtering.steps_again(
                table, request, self.steps, is_plugin
            )
            self._best = 0

    def _make_plan(self) -> SearchPlan:
        table, request = self.table, self.request
        aggregates = table.topology.aggregates
        return SearchPlan(
            self.filtering.steps(table, request),
            self.weighing.terms(table, request),
            short_query(request, aggregates, self.filtering.settings),
        )

    def _kept_plan(self, key: Any) -> SearchPlan:
        """Return the plan of an earlier request that asked for the same.

        Its columns and masks hold until hosts or aggregates change.

        :param key: what the request asks for
        """
        table, request = self.table, self.request
        kept: _KeptPlans = table.load.memoize(
            (_KeptPlans, self.filtering), _KeptPlans
        )
        if kept.topology is not table.topology:
            kept.by_shape.clear()
            kept.topology = table.topology
            kept.reads_caller = (
                self.weighing.has_plugins or self.filtering.reads_caller(table)
            )
        if kept.reads_caller:
            image = request.image and request.image.id
            count = request.num_instances
            key = key, request.project_id, request.user_id, image, count
        plan = kept.by_shape.pop(key, None)
        if plan is None:
            plan = self._make_plan()
            if len(kept.by_shape) >= _PLANS_KEPT:
                del kept.by_shape[next(iter(kept.by_shape))]
        kept.by_shape[key] = plan
        return plan

    def filter(self) -> Counts:
        """Filter for the first instance.

        :return: (filter, hosts before, hosts after) of each filter
        :raises FilterFault: a filter failed
        """
        top = self.plan.top
        if top is not None and self._best and top.refresh(self.table):
            return top.counts()
        self._mask, self._counts = self.filtering.run(
            self.table, self.request, self.steps
        )
        return self._counts

    def ranking(self, index: int = 0) -> Ranking | None:
        """Return the ranking for an instance; None: no host passes.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a filter or weigher failed
        """
        plan, table, request = self.plan, self.table, self.request
        if self._mask is None:
            assert plan.top is not None
            ranking = plan.top.rank(self._best)
            if ranking is not None:
                plan.credit = min(plan.credit + _GAIN, _MOST_CREDIT)
                plan.unused = 0
                return ranking
            self._mask, self._counts = self.filtering.run(
                table, request, self.steps
            )
        if self._bonuses is not None:
            bonus = self._bonuses[min(index, len(self._bonuses) - 1)]
            return self._ranking_with(self._mask, bonus)
        ranking = self.weighing.rank(table, self._mask, request, self.terms)
        if self._best and ranking is not None:
            plan.credit += 1
            plan.top = None
            cost = _COST << plan.unused
            if plan.credit > cost:
                plan.credit -= cost
                plan.unused = min(plan.unused + 1, _MOST_UNUSED)
                plan.top = TopHosts.of(self, ranking, self._counts)
        return ranking

    def advance(self, index: int) -> None:
        """Plan for the next instance.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a filter failed
        """
        request = self.request
        if index < len(request.instance_uuids):
            request.placing = request.instance_uuids[index]
        self.steps = self.filtering.steps_again(
            self.table, request, self.steps, lambda each: not each.once
        )

    def next(self, row: int, index: int) -> Ranking | None:
        """Return the ranking for the next instance.

        :param row: host of the previous instance
        :param index: of the next instance; past the last for alternates
        :raises FilterFault: a filter or weigher failed
        """
        assert self._mask is not None
        table, request, groups = self.table, self.request, self.request.groups
        self.advance(index)
        if request.groups == groups:
            self.filtering.run_again(
                table,
                request,
                self.steps,
                self._mask,
                table.rows_taken_from(row, request.resources),
            )
        else:
            # Other hosts may pass.
            self._mask, _ = self.filtering.run(table, request, self.steps)
        return self.ranking(index)

    def _ranking_with(
        self, mask: Mask, bonus: Mapping[int, float]
    ) -> Ranking | None:
        """Rank the hosts that extenders left, with the weights they added."""
        ids = self.table.ids
        left = np.isin(ids, np.array(sorted(bonus), np.int64))
        rows = np.flatnonzero(mask & left)
        if not len(rows):
            return None
        ranking = self.weighing.rank_rows(
            self.table, rows, self.request, self.terms
        )
        ranking.add(ids, bonus)
        return ranking


def _hold(steps: Sequence[Step], terms: Sequence[Term]) -> bool:
    """Whether a plan says the same of a host until the host changes."""
    return all(raw is not None for *_, raw in terms) and not any(
        each_time
        or (form == ROWS and verdict is not None and not host_filter.once)
        for host_filter, form, verdict, each_time in steps
    )


# Searches of fewer hosts take no longer than what is here.
_MIN_HOSTS = 2_000
# A request for more of the best than this looks at all hosts.
_MOST_BEST = 32
# Least and largest number of top hosts that are kept; fewer where fewer pass.
_TOP, _MOST_TOP = 48, 256
# The number of blocks of hosts per top host. The best hosts of the blocks show
# how much a top host weighs at least.
_BLOCKS = 4
# Finding the top hosts costs credit, and a ranking that uses them earns it, in
# units of one pass over all hosts. It costs twice as much each time that they
# were of no use, as in a mix of requests.
_COST, _GAIN, _MOST_CREDIT, _MOST_UNUSED = 8, 4, 32, 9
# Rounding in a sum of weights, relative to the multipliers.
_ROUNDING = 1e-9


class TopHosts:
    """The hosts that weighed most in a pass over all hosts.

    While no other host changes, they give the same result as a pass over all
    hosts, to the last bit. How much a host weighs depends on the others only
    through the ranges of raw weights. Where these change, another host may
    weigh more than before: by how much at most is worked out.

    Every other host weighed less than ``cut``, or exactly ``cut`` and comes
    after ``cut_row``.
    """

    def __init__(
        self,
        search: HostSearch,
        ranking: Ranking,
        counts: Counts,
        rows: Rows,
        others: list[Range],
        cut: tuple[float, int],
    ) -> None:
        self._terms = search.terms
        self._counts, self._count = counts, ranking.count
        self._ends, self._others = ranking.ranges, others
        self._cut, self._cut_row = cut
        self._position = search.table.load.changes.end
        self._rows = rows
        self._rounding = _ROUNDING * sum(
            float(np.abs(factor).max()) for _, factor, _ in search.terms
        )
        self._places = {row: at for at, row in enumerate(rows.tolist())}
        self._raw = np.array([raw.take(rows) for *_, raw in search.terms])
        counted = [step for step in search.steps if is_counted(step)]
        self._comparisons = [
            (at, comparison)
            for at, (_, form, verdict, _) in enumerate(counted)
            if form == COMPARISONS
            for comparison in verdict or ()
        ]
        # Place of a host that does not pass any more -> the first filter.
        self._rejected: dict[int, int] = {}

    @classmethod
    def of(
        cls, search: HostSearch, ranking: Ranking, counts: Counts
    ) -> TopHosts | None:
        """Return the top hosts of a ranking of all hosts that pass.

        :param counts: of the filters
        :return: None: others might weigh as much at any time
        """
        totals, terms = ranking.totals, search.terms
        if ranking.count < 2 or not terms or not _hold(search.steps, terms):
            return None
        cut, cut_row = -math.inf, len(search.table)
        if ranking.count > _MOST_TOP:
            # The best of some blocks show how much the top hosts weigh.
            block = len(totals) // (_BLOCKS * _TOP) or 1
            starts = np.arange(0, len(totals), block)
            best = np.maximum.reduceat(totals, starts)
            cut = float(np.partition(best, -_TOP)[-_TOP])
        at = np.flatnonzero(totals >= cut if cut > -math.inf else totals > cut)
        if len(at) > _MOST_TOP:
            ties = at[totals.take(at) == cut]
            at = np.setdiff1d(at, ties[_TOP:])
            if len(at) > _MOST_TOP or cut == -math.inf:
                return None
            cut_row = int(ranking.rows[ties[_TOP - 1]])
        rows = ranking.rows.take(at)
        others = []
        for (weigher, _, raw), ends in zip(terms, ranking.ranges, strict=True):
            own = raw.take(rows)
            if not np.isfinite(own).all():
                return None
            if len(at) == ranking.count:
                ends = math.inf, -math.inf
            elif (weigher.minval is None and own.min() <= ends[0]) or (
                weigher.maxval is None and own.max() >= ends[1]
            ):
                rest = totals > -math.inf
                rest[at] = False
                of_others = raw.take(ranking.rows[rest])
                ends = float(of_others.min()), float(of_others.max())
            others.append(ends)
        return cls(search, ranking, counts, rows, others, (cut, cut_row))

    def refresh(self, table: HostTable) -> bool:
        """Take in the hosts that changed; return false where others did."""
        changes = table.load.changes
        if changes.end == self._position:
            return True
        rows = changes.since(self._position)
        self._position = changes.end
        if rows is None or len(rows) > _MOST_TOP:
            self._position = -1
            return False
        for row in set(rows.tolist()):
            at = self._places.get(row)
            if at is None:
                self._position = -1
                return False
            self._raw[:, at] = [raw.item(row) for *_, raw in self._terms]
            self._rejected.pop(at, None)
            for step, comparison in self._comparisons:
                if not comparison.at(row):
                    self._rejected[at] = step
                    break
        return True

    def counts(self) -> Counts:
        """Return the counts of the filters, of those that are counted."""
        if not self._rejected:
            return self._counts
        gone, counts = 0, []
        rejected = collections.Counter(self._rejected.values())
        for step, (name, before, left) in enumerate(self._counts):
            before -= gone
            gone += rejected[step]
            counts.append((name, before, left - gone))
        return counts

    def rank(self, best: int) -> Ranking | None:
        """Return the ranking of the top hosts that pass.

        :param best: of how many of the best it has to be certain
        :return: None: another host may be among these
        """
        rows, raw = self._rows, self._raw
        if self._rejected:
            passing = np.ones(len(rows), np.bool_)
            passing[list(self._rejected)] = False
            rows, raw = rows[passing], raw[:, passing]
        count = self._count - len(self._rejected)
        if count < 2 or len(rows) < min(best, count):
            return None
        weighed = []
        rise, moved = 0.0, False
        for (weigher, factor, _), values, low, high, before, others in zip(
            self._terms,
            raw,
            np.minimum.reduce(raw, axis=1).tolist(),
            np.maximum.reduce(raw, axis=1).tolist(),
            self._ends,
            self._others,
            strict=True,
        ):
            low = min(low, others[0]) if weigher.minval is None else before[0]
            high = (
                max(high, others[1]) if weigher.maxval is None else before[1]
            )
            if (low, high) != before:
                rise += _rise(factor, before, (low, high))
                moved = True
            if not isinstance(factor, float):
                factor = factor[rows]
            weighed.append((weigher.name, values, (low, high), factor))
        totals, parts = summed(weighed, len(rows))
        ranking = Ranking(rows, totals, parts, count)
        last = ranking.best_at(best)[-1]
        total, most = totals.item(last), self._cut + rise
        if moved:
            return ranking if total > most + self._rounding else None
        is_certain = total > most or (
            total == most and rows.item(last) <= self._cut_row
        )
        return ranking if is_certain else None


def _rise(factor: Any, before: Range, now: Range) -> float:
    """Return by how much a part can grow at most where its range changes.

    The normalised weight is a number from 0 to 1 in each range, and nothing is
    added where all hosts are equal.
    """
    span = now[1] - now[0]
    if not span:
        at_low, at_high = 0.0, -1.0
    else:
        at_low, at_high = (
            (before[0] - now[0]) / span,
            (before[1] - now[1]) / span,
        )
        if before[0] == before[1]:
            at_high = at_low
    return max(
        float(bound * end)
        for bound in (np.min(factor), np.max(factor))
        for end in (at_low, at_high)
    )
