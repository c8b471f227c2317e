"""Search hosts for the instances of one request, one after the other.

A search belongs to the thread of its pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import Filtering
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import Weighing


class HostSearch:
    """Filters and weighs for each instance of a request in turn.

    :param bonuses: what extenders said, None where they were not asked
    :ivar funnel: counts of the pass for the first instance
    """

    def __init__(
        self,
        filtering: Filtering,
        weighing: Weighing,
        table: HostTable,
        request: Request,
        bonuses: Bonuses | None,
    ) -> None:
        self.funnel = Funnel(len(table))
        self._filtering = filtering
        self._weighing = weighing
        self._table = table
        self._request = request
        self._bonuses = bonuses
        self._steps = filtering.plan(table, request)
        self._terms = weighing.plan(table, request)
        self._passed = filtering.run(table, request, self._steps, self.funnel)

    def ranking(self, index: int = 0) -> Ranking | None:
        """Return the ranking for an instance; None: no host passes.

        :param index: of the instance; past the last one for alternates
        :raises FilterFault: a weigher failed
        """
        mask, left = self._passed
        if self._bonuses is not None:
            bonus = self._bonuses[min(index, len(self._bonuses) - 1)]
            return self._ranking_with(mask, bonus)
        return self._weighing.rank(
            self._table, mask, left, self._request, self._terms
        )

    def next(self, row: int, index: int) -> Ranking | None:
        """Return the ranking for the next instance.

        :param row: where the one before was put
        :param index: of the next; past the last one for alternates
        :raises FilterFault: a filter or weigher failed
        """
        table, request = self._table, self._request
        if index < len(request.instance_uuids):
            request.placing = request.instance_uuids[index]
        self._steps = self._filtering.plan_again(table, request, self._steps)
        self._passed = self._filtering.run_again(
            table, request, self._steps, self._passed.mask, np.array([row])
        )
        return self.ranking(index)

    def _ranking_with(
        self, mask: Mask, bonus: Mapping[int, float]
    ) -> Ranking | None:
        """Rank the hosts that extenders left, with what they added."""
        ids = self._table.ids
        left = np.isin(ids, np.array(sorted(bonus), np.int64))
        rows = np.flatnonzero(mask & left)
        if not len(rows):
            return None
        ranking = self._weighing.rank_rows(
            self._table, rows, self._request, self._terms
        )
        more = np.array([bonus[store_id] for store_id in ids[rows].tolist()])
        ranking.totals = ranking.totals + more
        ranking.parts.append(('extenders', more))
        return ranking
