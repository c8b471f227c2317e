"""Filter results and weights of one request, kept while its table stays.

Used by one thread at a time.
"""

from __future__ import annotations

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
        self._filtering = filtering
        self._weighing = weighing
        self._table = table
        self._request = request
        self._steps: list[Step] | None = None
        self._terms: list[Term] | None = None
        self._mask: Mask | None = None
        # Whether every host of the table passes, once ``_mask`` is set.
        self._all_pass = False
        self._results: list[FilterResult] | None = None
        self._rejecting: tuple[Ints, list[HostFilter]] | None = None

    @property
    def request(self) -> Request:
        """The request."""
        return self._request

    def passing(self) -> Mask:
        """Return which hosts pass every filter, bool[n].

        :raises FilterFault: a filter failed
        """
        if self._mask is not None:
            return self._mask
        steps = self._planned()
        mask = self._filtering.run(self._table, self._request, steps).mask
        if not _any_each_time(steps):
            self._mask = mask
            self._all_pass = bool(mask.all())
        return mask

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
        if self._results is not None:
            return self._results
        results = self._filtering.results(self._table, self._request)
        if not _any_each_time(self._planned()):
            self._results = results
        return results

    def first_rejecting(self) -> tuple[Ints, list[HostFilter]]:
        """Return the first filter that rejects each host, int64[n].

        The index of a filter in the list; -1: no filter rejects the host.

        :raises FilterFault: a filter failed
        """
        if self._rejecting is not None:
            return self._rejecting
        results = self.results()
        first = np.full(len(self._table), -1, np.int64)
        for number, (_, mask) in enumerate(results):
            first[(first < 0) & ~mask] = number
        rejecting = first, [result.filter for result in results]
        if self._results is not None:
            self._rejecting = rejecting
        return rejecting

    def totals(self, rows: Rows) -> Floats | None:
        """Return the weights of some hosts, relative to each other.

        None: no weigher has an opinion on the request.

        :param rows: int64[m], in any order; the result is in the same
        :raises FilterFault: a weigher failed
        """
        if self._terms is None:
            self._terms = self._weighing.plan(self._table, self._request)
        if not self._terms:
            return None
        return self._weighing.rank_rows(
            self._table, rows, self._request, self._terms
        ).totals

    def _planned(self) -> list[Step]:
        if self._steps is None:
            self._steps = self._filtering.plan(self._table, self._request)
        return self._steps


def _any_each_time(steps: list[Step]) -> bool:
    return any(each_time for *_, each_time in steps)
