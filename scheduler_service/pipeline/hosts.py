"""One host request on one table: filter, weigh, choose, explain.

:class:`HostPipeline` is what the engine, the extender face and the
conformance cases call. The engine's pipeline belongs to the engine's thread;
:meth:`HostPipeline.filter_hosts`, :meth:`HostPipeline.weigh_hosts` and
:meth:`HostPipeline.filter_results` may be called by any thread on a table of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import Mask
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.pipeline import explain
from scheduler_service.pipeline.filtering import (
    Filtering,
    FilterResult,
    Passed,
)
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.randomness import RandomSource
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.search import HostSearch
from scheduler_service.pipeline.selection import (
    Assignment,
    Bonuses,
    ScheduleResult,
    SelectionBuilder,
)
from scheduler_service.pipeline.weighing import Weighing
from scheduler_service.request_filters import scope_of
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher


class HostPipeline:
    """The configured filters and weighers, in order.

    :param check_room: whether hosts need room for what a claim takes; off
        where no claim will follow and the filters alone decide
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        weighers: Sequence[Weigher],
        settings: Settings,
        check_room: bool = True,
    ) -> None:
        self.settings = settings
        self.filters = tuple(filters)
        self._filtering = Filtering(filters, settings, check_room)
        self._weighing = Weighing(weighers, settings)
        self._builder = SelectionBuilder(
            filters, self._filtering.resources, settings
        )

    def select(
        self,
        overlay: Overlay,
        request: Request,
        rng: RandomSource,
        spread: int = 1,
        bonuses: Bonuses | None = None,
    ) -> ScheduleResult:
        """Choose a host for every instance of the request, or none at all.

        What is chosen is assumed in *overlay*; nothing is where it raises.

        :param spread: choose at random among at least so many of the best
        :param bonuses: for each instance the hosts that it may be on, and
            what is added to their weights
        :raises NoValidHost: with the reasons, as :mod:`explain` words them
        :raises FilterFault: a filter or weigher failed
        """
        with overlay.transaction(request.num_instances > 1):
            return self._select(overlay, request, rng, spread, bonuses)

    def _select(
        self,
        overlay: Overlay,
        request: Request,
        rng: RandomSource,
        spread: int,
        bonuses: Bonuses | None,
    ) -> ScheduleResult:
        table = overlay.table
        search = HostSearch(
            self._filtering, self._weighing, table, request, bonuses
        )
        ranking = search.ranking()
        if ranking is None:
            raise self._refusal(table, request, search.funnel, 0)
        count, finalists = ranking.count, ranking.finalists(table)
        assignments: list[Assignment] = []
        for uuid in request.instance_uuids:
            if ranking is None:
                raise self._refusal(
                    table, request, search.funnel, len(assignments)
                )
            row = ranking.pick(self.settings, rng, spread)
            assigned = self._builder.assignment(table, row, uuid, request)
            assignments.append(assigned)
            overlay.assume(
                row, assigned.amounts, assigned.placed, request.instance_group
            )
            if request.num_instances > 1:
                ranking = search.next(row, len(assignments))
        if ranking is not None:
            self._builder.add_alternates(table, request, ranking, assignments)
        return ScheduleResult(
            assignments,
            search.funnel,
            count,
            finalists,
            self._query(table, request),
        )

    def _query(self, table: HostTable, request: Request) -> str:
        """Return what the request filters ask of hosts."""
        aggregates = table.topology.aggregates
        return scope_of(request, aggregates, self.settings).query()

    def _refusal(
        self, table: HostTable, request: Request, funnel: Funnel, placed: int
    ) -> errors.NoValidHost:
        return explain.refusal(
            self.filter_results(table, request),
            explain.Subject(table, request, self.settings),
            funnel,
            placed,
        )

    def filter_hosts(
        self,
        table: HostTable,
        request: Request,
        funnel: Funnel | None = None,
    ) -> Passed:
        """Return the hosts that pass every filter.

        :param funnel: gets the counts
        :raises FilterFault: a filter failed
        """
        steps = self._filtering.plan(table, request)
        return self._filtering.run(
            table, request, steps, funnel or Funnel(len(table))
        )

    def filter_results(
        self, table: HostTable, request: Request
    ) -> list[FilterResult]:
        """Return what each filter says of every host."""
        return self._filtering.results(table, request)

    def weigh_hosts(
        self, table: HostTable, mask: Mask, request: Request
    ) -> Ranking | None:
        """Weigh the hosts of *mask*, bool[n]; None where there are none."""
        rows = np.flatnonzero(mask)
        if not len(rows):
            return None
        terms = self._weighing.plan(table, request)
        return self._weighing.rank_rows(table, rows, request, terms)
