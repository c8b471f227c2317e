"""Searches hosts for the instances of one request in turn.

A search belongs to the thread of its pipeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Topology
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import Filtering, Step, is_plugin
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import Ranking, Term, Weighing
from scheduler_service.request_filters import short_query
from scheduler_service.time_slice import Counts

# Plans of so many shapes of requests are kept for a table, of 4 kB each.
_PLANS_KEPT = 2048


@dataclasses.dataclass(slots=True)
class SearchPlan:
    """What filters and weighers say about requests that ask for the same.

    :ivar steps: of the filters, in order
    :ivar terms: of the weighers
    :ivar query: the restrictions of the request filters, for people
    """

    steps: list[Step]
    terms: list[Term]
    query: str


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
    ) -> None:
        self.filtering = filtering
        self.weighing = weighing
        self.table = table
        self.request = request
        self._bonuses = bonuses
        # bool[n], the hosts that pass for the present instance; None: they are
        # not filtered yet.
        self._mask: Mask | None = None
        if request.shape is None or table.builds:
            self.plan = self._make_plan()
        else:
            self.plan = self._kept_plan(request.shape)
        self.steps, self.terms = self.plan.steps, self.plan.terms
        if filtering.has_row_plugins and request.shape is not None:
            self.steps = filtering.plan_again(
                table, request, self.steps, is_plugin
            )

    def _make_plan(self) -> SearchPlan:
        table, request = self.table, self.request
        aggregates = table.topology.aggregates
        return SearchPlan(
            self.filtering.plan(table, request),
            self.weighing.plan(table, request),
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
        self._mask, counts = self.filtering.run(
            self.table, self.request, self.steps
        )
        return counts

    def ranking(self, index: int = 0) -> Ranking | None:
        """Return the ranking for an instance; None: no host passes.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a filter or weigher failed
        """
        assert self._mask is not None
        if self._bonuses is not None:
            bonus = self._bonuses[min(index, len(self._bonuses) - 1)]
            return self._ranking_with(self._mask, bonus)
        return self.weighing.rank(
            self.table, self._mask, self.request, self.terms
        )

    def advance(self, index: int) -> None:
        """Plan for the next instance.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a filter failed
        """
        request = self.request
        if index < len(request.instance_uuids):
            request.placing = request.instance_uuids[index]
        self.steps = self.filtering.plan_again(
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
                table, request, self.steps, self._mask, np.array([row])
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
        more = np.array([bonus[store_id] for store_id in ids[rows].tolist()])
        ranking.totals = ranking.totals + more
        ranking.parts.append(('extenders', more, more, (0.0, 1.0), 1.0))
        return ranking
