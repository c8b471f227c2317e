"""Run the filters, cheap ones first: masks are ANDed, and hosts counted.

The order is that of the configuration: the filters that every request
passes, the configured ones, room for the claim, and last the filters that
visit hosts one by one. Any thread may call this, each on its own table.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Mask, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME
from scheduler_service.filters.base import (
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


class Form(enum.IntEnum):
    """In which form a filter gives its verdict."""

    MASK = 0
    COMPARISONS = 1
    ROWS = 2
    ONE_HOST = 3


class Step(NamedTuple):
    """One filter on its way through a request.

    :ivar key: of the mask, where it is kept
    :ivar verdict: a mask, comparisons, or a set of rows; None: nothing to
        say, or not asked yet
    :ivar each_time: whether the mask is asked for with every instance
    """

    filter: HostFilter
    form: Form
    key: Any
    verdict: Any
    each_time: bool


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
        every = (*MANDATORY_FILTERS, *masks, *room, *slow)
        self._all = [(one, _form(one)) for one in every]
        self._forced = [
            (one, _form(one)) for one in (*MANDATORY_FILTERS, *room)
        ]
        self._rebuild = [pair for pair in self._all if pair[0].rebuild]

    def plan(self, table: HostTable, request: Request) -> list[Step]:
        """Return the filters that run for the request, in order.

        What stays the same for all of its instances is worked out.

        :raises FilterFault: a filter failed
        """
        return list(self._steps(table, request))

    def _steps(self, table: HostTable, request: Request) -> Iterator[Step]:
        filters = self._all
        if request.forced and not request.scheduler_hints.get(
            '_nova_check_type'
        ):
            filters = self._forced
        elif request.is_rebuild:
            filters = self._rebuild
        settings = self._settings
        mask_of = table.topology.mask
        for one, form in filters:
            key: Any = None
            verdict: Any = None
            each_time = form == Form.ONE_HOST
            filter_: Any = one
            try:
                if form == Form.COMPARISONS:
                    verdict = filter_.comparisons(table, request, settings)
                elif form == Form.ROWS:
                    verdict = filter_.row_set(table, request, settings)
                elif form == Form.MASK:
                    key = one.mask_key(table, request, settings)
                    each_time = key is EACH_TIME
                    if key is not None and not each_time:
                        verdict = mask_of(
                            (one.name, key),
                            functools.partial(
                                one.mask, table, request, settings
                            ),
                        )
            except Exception as fault:
                raise _error(one, fault) from fault
            if form == Form.COMPARISONS and not verdict:
                verdict = None
            yield Step(one, form, key, verdict, each_time)

    def plan_again(
        self, table: HostTable, request: Request, steps: Sequence[Step]
    ) -> list[Step]:
        """Return the steps for the next instance of the request.

        Filters that run once for a request are not asked again.
        """
        return [
            step._replace(verdict=self._ask(step, table, request, None))
            if step.form == Form.ROWS and not step.filter.once
            else step
            for step in steps
        ]

    def run(
        self,
        table: HostTable,
        request: Request,
        steps: Sequence[Step],
        funnel: Funnel,
    ) -> Passed:
        """Return the hosts that pass every filter, and count them.

        :param steps: as :meth:`plan` returned them
        :param funnel: gets the counts
        :raises FilterFault: a filter failed
        """
        left = len(table)
        passed = np.ones(left, np.bool_)
        counts = funnel.counts
        for step in steps:
            before, verdict = left, step.verdict
            if step.each_time:
                verdict = self._ask(step, table, request, passed)
            if verdict is not None:
                _and(passed, step.form, verdict)
                left = int(np.count_nonzero(passed))
            elif step.filter.name[0].islower():
                # Those that every request passes are counted where they
                # have something to say.
                continue
            counts.append((step.filter.name, before, left))
            if not left:
                break
        return Passed(passed, left)

    def run_again(
        self,
        table: HostTable,
        request: Request,
        steps: Sequence[Step],
        passed: Mask,
        changed: Rows,
    ) -> Passed:
        """Return the hosts that pass for the next instance of a request.

        Filters that run once for a request are not run again.

        :param steps: as :meth:`plan_again` returned them
        :param passed: those that passed for the instance before; it is
            written to
        :param changed: rows whose load changed since
        """
        for step in steps:
            if step.form == Form.COMPARISONS and step.verdict is not None:
                for comparison in step.verdict:
                    passed[changed] &= comparison.at(changed)
            elif step.form == Form.ROWS or (
                step.each_time and not step.filter.once
            ):
                verdict = step.verdict
                if step.each_time:
                    verdict = self._ask(step, table, request, passed)
                if verdict is not None:
                    _and(passed, step.form, verdict)
        return Passed(passed, int(np.count_nonzero(passed)))

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
        for step in self._steps(table, request):
            mask, verdict = every.copy(), step.verdict
            if step.each_time:
                verdict = self._ask(step, table, request, every)
            if verdict is not None:
                _and(mask, step.form, verdict)
            if isinstance(step.filter, CapacityFilter):
                roomy = roomy & mask
            elif step.filter is self.resources:
                mask |= ~roomy
            results.append(FilterResult(step.filter, mask))
        return results

    def _ask(
        self,
        step: Step,
        table: HostTable,
        request: Request,
        among: Mask | None,
    ) -> Any:
        """Return a filter's verdict now."""
        one: Any = step.filter
        try:
            if step.form == Form.ROWS:
                return one.row_set(table, request, self._settings)
            if step.form == Form.ONE_HOST:
                return one.passing(table, request, among)
            return one.mask(table, request, self._settings)
        except Exception as fault:
            raise _error(one, fault) from fault


def _form(one: HostFilter) -> Form:
    if isinstance(one, ComparisonFilter):
        return Form.COMPARISONS
    if isinstance(one, RowFilter):
        return Form.ROWS
    return Form.ONE_HOST if isinstance(one, OneHostFilter) else Form.MASK


def _error(one: HostFilter, fault: Exception) -> errors.SchedulerError:
    """Return a fault of a filter as an error that names the filter."""
    if isinstance(fault, errors.SchedulerError):
        return fault
    return errors.FilterFault(
        f'{one.name} failed: {type(fault).__name__}: {fault}',
        filter=one.name,
        fault=type(fault).__name__,
    )


def _and(passed: Mask, form: Form, verdict: Any) -> None:
    """Take out of *passed* the hosts that do not pass."""
    if form == Form.COMPARISONS:
        for column, operator, value in verdict:
            passed &= operator(column, value)
    elif form != Form.ROWS:
        passed &= verdict
    else:
        _and_rows(passed, verdict)


def _and_rows(passed: Mask, named: RowSet) -> None:
    if named.passes:
        kept = passed[named.rows]
        passed[:] = False
        passed[named.rows] = kept
    else:
        passed[named.rows] = False
