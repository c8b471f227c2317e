"""Search hosts for the instances of one request, one after the other.

A search belongs to the thread of its pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.model import Request
from scheduler_service.pipeline.cache import RankingCache
from scheduler_service.pipeline.filtering import Filtering, Passed
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.ranking import FINALISTS, Ranking
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import Weighing
from scheduler_service.settings import Settings


class HostSearch:
    """Filters and weighs for each instance of a request in turn.

    :param cache: of rankings; None: every search passes over all hosts
    :param spread: how many of the best one is chosen among, at least
    :ivar funnel: counts of the first pass over the hosts
    """

    def __init__(
        self,
        filtering: Filtering,
        weighing: Weighing,
        cache: RankingCache | None,
        settings: Settings,
        table: HostTable,
        request: Request,
        spread: int,
        bonuses: Bonuses | None,
    ) -> None:
        self.funnel = Funnel(len(table))
        self._filtering = filtering
        self._weighing = weighing
        # What extenders left is not kept.
        self._cache = cache if bonuses is None else None
        self._table = table
        self._request = request
        self._bonuses = bonuses
        self._ties = settings.shuffle_best_same_weighed_hosts
        self._best = max(
            FINALISTS,
            settings.max_attempts - 1 + request.num_instances,
            settings.host_subset_size,
            spread,
        )
        self._steps = filtering.plan(table, request)
        self._terms = weighing.plan(table, request)
        self._passed: Passed | None = None

    def first(self) -> Ranking | None:
        """Return the ranking for the first instance; None: no host passes.

        :raises FilterFault: a filter or weigher failed
        """
        return self._rank(self.funnel, 0)

    def next(self, row: int, index: int) -> Ranking | None:
        """Return the ranking for the next instance.

        :param row: where the one before was put
        :param index: of the next; past the last one for alternates
        :raises FilterFault: a filter or weigher failed
        """
        table, request, passed = self._table, self._request, self._passed
        if index < len(request.instance_uuids):
            request.placing = request.instance_uuids[index]
        self._steps = self._filtering.plan_again(table, request, self._steps)
        if passed is None:
            return self._rank(Funnel(len(table)), index)
        self._passed = self._filtering.run_again(
            table, request, self._steps, passed.mask, np.array([row])
        )
        return self._weigh(self._passed, index)

    def _rank(self, funnel: Funnel, index: int) -> Ranking | None:
        """Look the ranking up, or else pass over all hosts."""
        if self._cache is not None:
            found = self._cache.lookup(
                self._table, self._steps, self._terms, self._best, self._ties
            )
            if found is not None:
                funnel.counts = found.funnel.counts
                return found.ranking
        self._passed = self._filtering.run(
            self._table, self._request, self._steps, funnel
        )
        return self._weigh(self._passed, index)

    def _weigh(self, passed: Passed, index: int) -> Ranking | None:
        """Rank the hosts that passed; None where there are none."""
        if self._bonuses is None:
            return self._weighing.rank(
                self._table,
                passed.mask,
                passed.left,
                self._request,
                self._terms,
            )
        bonus = self._bonuses[min(index, len(self._bonuses) - 1)]
        return self._weigh_with(passed.mask, bonus)

    def _weigh_with(
        self, mask: Mask, bonus: Mapping[int, float]
    ) -> Ranking | None:
        """Rank the hosts that extenders left, with what they added."""
        ids = np.array(sorted(bonus), np.int64)
        mask = mask & np.isin(self._table.ids, ids)
        ranking = self._weighing.rank(
            self._table,
            mask,
            int(np.count_nonzero(mask)),
            self._request,
            self._terms,
        )
        if ranking is not None:
            host_ids = self._table.ids[ranking.rows].tolist()
            more = np.array([bonus[store_id] for store_id in host_ids])
            ranking.totals = ranking.totals + more
            ranking.parts.append(('extenders', more))
        return ranking
