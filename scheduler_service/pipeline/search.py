"""Searches hosts for the instances of one request in turn.

A search belongs to the thread of its pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import Filtering, Funnel
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import Weighing
from scheduler_service.request_filters import short_query

# Plans of so many shapes of requests are kept for a table, of 4 kB each.
_PLANS_KEPT = 2048


class SearchPlan:
    """The filters' steps and the weighers' terms for one request.

    :ivar steps: of the filters, in order; those of the next instance once
        there is one
    :ivar terms: of the weighers
    :ivar query: the restrictions of the request filters, for people
    :raises FilterFault: a filter or weigher failed
    """

    def __init__(
        self,
        filtering: Filtering,
        weighing: Weighing,
        table: HostTable,
        request: Request,
    ) -> None:
        self.filtering = filtering
        self.weighing = weighing
        self.table = table
        self.request = request
        if request.shape is None:
            self._plan()
        else:
            self._plan_as_before()

    def _plan(self) -> None:
        table, request = self.table, self.request
        self.steps = self.filtering.plan(table, request)
        self.terms = self.weighing.plan(table, request)
        aggregates = table.topology.aggregates
        self.query = short_query(request, aggregates, self.filtering.settings)

    def _plan_as_before(self) -> None:
        """Reuse the plan of an earlier request that asked for the same.

        Its columns and masks hold until hosts or aggregates change. Filters
        that name hosts are evaluated again.
        """
        table, request = self.table, self.request
        plans = table.load.memoize((SearchPlan, self.filtering), dict)
        key: Any = request.shape
        if self.weighing.has_plugins or self.filtering.reads_caller(table):
            key = (
                key,
                request.project_id,
                request.user_id,
                request.image and request.image.id,
                tuple(request.ignore_hosts or ()),
                tuple(request.ignore_nodes),
            )
        kept = plans.pop(key, None)
        if kept is not None and kept[0] is table.topology:
            plans[key] = kept
            _, steps, self.terms, self.query = kept
            self.steps = self.filtering.plan_rows(table, request, steps)
            return
        self._plan()
        if len(plans) >= _PLANS_KEPT:
            # The one that was used longest ago.
            del plans[next(iter(plans))]
        plans[key] = table.topology, self.steps, self.terms, self.query

    def advance(self, index: int) -> None:
        """Plan for the next instance.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a filter failed
        """
        request = self.request
        if index < len(request.instance_uuids):
            request.placing = request.instance_uuids[index]
        self.steps = self.filtering.plan_again(self.table, request, self.steps)


class HostSearch:
    """Filters and weighs all hosts, for each instance of a request in turn.

    :param bonuses: weights from extenders; None: no extender was called
    :ivar funnel: counts of the pass for the first instance
    """

    def __init__(
        self, plan: SearchPlan, bonuses: Bonuses | None = None
    ) -> None:
        self.funnel = Funnel(len(plan.table))
        self._plan = plan
        self._bonuses = bonuses
        self._passed = plan.filtering.run(
            plan.table, plan.request, plan.steps, self.funnel
        )

    def ranking(self, index: int = 0) -> Ranking | None:
        """Return the ranking for an instance; None: no host passes.

        :param index: of the instance; past the last for alternates
        :raises FilterFault: a weigher failed
        """
        mask, left = self._passed
        if self._bonuses is not None:
            bonus = self._bonuses[min(index, len(self._bonuses) - 1)]
            return self._ranking_with(mask, bonus)
        plan = self._plan
        return plan.weighing.rank(
            plan.table, mask, left, plan.request, plan.terms
        )

    def next(self, row: int, index: int) -> Ranking | None:
        """Return the ranking for the next instance.

        :param row: host of the previous instance
        :param index: of the next instance; past the last for alternates
        :raises FilterFault: a filter or weigher failed
        """
        plan = self._plan
        plan.advance(index)
        self._passed = plan.filtering.run_again(
            plan.table,
            plan.request,
            plan.steps,
            self._passed.mask,
            np.array([row]),
        )
        return self.ranking(index)

    def _ranking_with(
        self, mask: Mask, bonus: Mapping[int, float]
    ) -> Ranking | None:
        """Rank the hosts that extenders left, with the weights they added."""
        plan = self._plan
        ids = plan.table.ids
        left = np.isin(ids, np.array(sorted(bonus), np.int64))
        rows = np.flatnonzero(mask & left)
        if not len(rows):
            return None
        ranking = plan.weighing.rank_rows(
            plan.table, rows, plan.request, plan.terms
        )
        more = np.array([bonus[store_id] for store_id in ids[rows].tolist()])
        ranking.totals = ranking.totals + more
        ranking.parts.append(('extenders', more))
        return ranking
