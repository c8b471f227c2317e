"""Run the filters, cheap ones first: masks are ANDed, and hosts counted.

The order is that of the configuration: the filters that every request
passes, the configured ones, room for the claim, and last the filters that
visit hosts one by one. Any thread may call this, each on its own table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME
from scheduler_service.filters.hosts.base import (
    Comparison,
    ComparisonFilter,
    HostFilter,
    OneHostFilter,
    RowFilter,
    RowSet,
)
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.model import Request
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.mandatory_filters import (
    MANDATORY_FILTERS,
    Resources,
)
from scheduler_service.settings import Settings

Verdict = Mask | RowSet | Sequence[Comparison] | None


class Passed(NamedTuple):
    """Which hosts passed the filters.

    :ivar mask: bool[n]
    :ivar left: how many are true
    """

    mask: Mask
    left: int


class FilterResult(NamedTuple):
    """What one filter says of every host, whatever the others say."""

    filter: HostFilter
    mask: Mask


class Filtering:
    """The filters of a pipeline, in order.

    :param check_room: whether hosts need room for what a claim takes; off
        where no claim will follow and the filters alone decide
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        settings: Settings,
        check_room: bool = True,
    ) -> None:
        self.resources = Resources(filters)
        self._settings = settings
        room = (self.resources,) if check_room else ()
        masks = tuple(one for one in filters if one.vectorised)
        slow = tuple(one for one in filters if not one.vectorised)
        self._all = (*MANDATORY_FILTERS, *masks, *room, *slow)
        self._forced = (*MANDATORY_FILTERS, *room)
        self._rebuild = tuple(one for one in self._all if one.rebuild)

    def filters_for(self, request: Request) -> Sequence[HostFilter]:
        """Return the filters that run for the request, in order."""
        if request.forced and not request.scheduler_hints.get(
            '_nova_check_type'
        ):
            return self._forced
        return self._rebuild if request.is_rebuild else self._all

    def run(
        self,
        table: HostTable,
        request: Request,
        among: Mask | None = None,
        funnel: Funnel | None = None,
    ) -> Passed:
        """Return the hosts that pass every filter.

        :param among: bool[n], those that passed for an instance before;
            filters that run once for a request are not run again
        :param funnel: gets the counts
        :raises FilterFault: a filter failed
        """
        passed = (
            np.ones(len(table), np.bool_) if among is None else among.copy()
        )
        left = int(np.count_nonzero(passed))
        for one in self.filters_for(request):
            if among is not None and one.once:
                continue
            verdict = self.verdict(one, table, request, passed)
            before = left
            if verdict is not None:
                _and(passed, verdict)
                left = int(np.count_nonzero(passed))
            if funnel is not None and is_counted(one, verdict):
                funnel.counts.append((one.name, before, left))
            if not left:
                break
        return Passed(passed, left)

    def results(
        self, table: HostTable, request: Request
    ) -> list[FilterResult]:
        """Return what each filter says of every host, bool[n] each.

        Room for the claim is blamed only where every capacity filter that
        is configured lets the host pass: they say the same, and better.
        """
        every = np.ones(len(table), np.bool_)
        roomy = every
        results = []
        for one in self.filters_for(request):
            mask = every.copy()
            verdict = self.verdict(one, table, request, every)
            if verdict is not None:
                _and(mask, verdict)
            if isinstance(one, CapacityFilter):
                roomy = roomy & mask
            elif one is self.resources:
                mask |= ~roomy
            results.append(FilterResult(one, mask))
        return results

    def verdict(
        self, one: HostFilter, table: HostTable, request: Request, among: Mask
    ) -> Verdict:
        """Return a filter's verdict in its own form; None: all pass.

        :raises FilterFault: it failed
        """
        try:
            return self._verdict(one, table, request, among)
        except errors.SchedulerError:
            raise
        except Exception as fault:
            raise errors.FilterFault(
                f'{one.name} failed: {type(fault).__name__}: {fault}',
                filter=one.name,
                fault=type(fault).__name__,
            ) from fault

    def _verdict(
        self, one: HostFilter, table: HostTable, request: Request, among: Mask
    ) -> Verdict:
        settings = self._settings
        if isinstance(one, ComparisonFilter):
            return one.comparisons(table, request, settings) or None
        if isinstance(one, RowFilter):
            return one.row_set(table, request, settings)
        if isinstance(one, OneHostFilter):
            return one.passing(table, request, among)
        key = one.mask_key(table, request, settings)
        if key is None:
            return None
        if key is EACH_TIME:
            return one.mask(table, request, settings)
        return table.topology.mask(
            (one.name, key), lambda: one.mask(table, request, settings)
        )


def is_counted(one: HostFilter, verdict: Verdict) -> bool:
    """Whether a filter appears in the funnel.

    Those that every request passes do where they had something to say.
    """
    return verdict is not None or one.name[0].isupper()


def _and(passed: Mask, verdict: Verdict) -> None:
    """Take out of *passed* the hosts that do not pass."""
    if isinstance(verdict, np.ndarray):
        passed &= verdict
    elif isinstance(verdict, RowSet):
        if verdict.passes:
            kept = passed[verdict.rows]
            passed[:] = False
            passed[verdict.rows] = kept
        else:
            passed[verdict.rows] = False
    elif verdict is not None:
        for column, operator, value in verdict:
            passed &= operator(column, value)
