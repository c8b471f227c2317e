"""Filter results and weights of one request, kept while its table stays.

Used by one thread at a time.
"""

from __future__ import annotations

import functools

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Ints, Mask, Rows
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import (
    Filtering,
    FilterResult,
    Step,
)
from scheduler_service.pipeline.weighing import Term, Weighing


class Evaluation:
    """One request on one table, which must not change meanwhile.

    Results that depend on request and table alone are computed once. Plug-ins
    with ``EACH_TIME`` run at every call.

    :ivar request: the request
    :ivar reasons: (name of a filter, row) -> why it rejects the host; for the
        caller to fill
    """

    def __init__(
        self,
        filtering: Filtering,
        weighing: Weighing,
        table: HostTable,
        request: Request,
    ) -> None:
        self.reasons: dict[tuple[str, int], str] = {}
        self.request = request
        self._filtering = filtering
        self._weighing = weighing
        self._table = table
        self._mask: Mask | None = None
        self._all_pass = False
        self._results: list[FilterResult] | None = None
        self._rejecting: tuple[Ints, list[HostFilter]] | None = None

    @functools.cached_property
    def _steps(self) -> list[Step]:
        return self._filtering.steps(self._table, self.request)

    @functools.cached_property
    def _is_kept(self) -> bool:
        return not any(each_time for *_, each_time in self._steps)

    def passing(self) -> Mask:
        """Return which hosts pass every filter, bool[n].

        :raises FilterFault: a filter failed
        """
        if self._mask is None or not self._is_kept:
            self._mask, _ = self._filtering.run(
                self._table, self.request, self._steps
            )
            self._all_pass = bool(self._mask.all())
        return self._mask

    def do_pass(self, rows: Rows) -> bool:
        """Return whether all of some hosts pass every filter.

        :param rows: int64[m]
        :raises FilterFault: a filter failed
        """
        mask = self.passing()
        return self._all_pass or bool(np.logical_and.reduce(mask.take(rows)))

    def results(self) -> list[FilterResult]:
        """Return the result of each filter for every host.

        :raises FilterFault: a filter failed
        """
        if self._results is None or not self._is_kept:
            self._results = self._filtering.results(self._table, self.request)
            self._rejecting = None
        return self._results

    def first_rejecting(self) -> tuple[Ints, list[HostFilter]]:
        """Return the first filter that rejects each host, int64[n].

        The index of a filter in the list; -1: no filter rejects the host.

        :raises FilterFault: a filter failed
        """
        results = self.results()
        if self._rejecting is None:
            first = np.full(len(self._table), -1, np.int64)
            for number, (_, mask) in enumerate(results):
                first[(first < 0) & ~mask] = number
            self._rejecting = first, [result.filter for result in results]
        return self._rejecting

    @functools.cached_property
    def _terms(self) -> list[Term]:
        return self._weighing.terms(self._table, self.request)

    def totals(self, rows: Rows) -> Floats | None:
        """Return the weights of some hosts, relative to each other.

        None: no weigher has an opinion on the request.

        :param rows: int64[m], in any order; the result is in the same
        :raises FilterFault: a weigher failed
        """
        if not self._terms:
            return None
        return self._weighing.rank_rows(
            self._table, rows, self.request, self._terms
        ).totals
