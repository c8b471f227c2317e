"""Run the filters: masks are ANDed, and the hosts that are left counted.

Any thread may call this, each on its own table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Ints, Mask, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.filters.base import (
    ComparisonFilter,
    HostFilter,
    OneHostFilter,
    RowFilter,
)
from scheduler_service.filters.capacity import CapacityFilter, CountFilter
from scheduler_service.filters.hosts.aggregate_filter import (
    AvailabilityZoneFilter,
)
from scheduler_service.filters.hosts.aggregate_multi_tenancy_isolation import (
    METADATA_PREFIX,
)
from scheduler_service.model import Request
from scheduler_service.pipeline.capacity_check import CapacityCheck
from scheduler_service.pipeline.mandatory_filters import (
    MANDATORY_FILTERS,
    AvailabilityZone,
    EarlierInstances,
    Enabled,
)
from scheduler_service.settings import Settings
from scheduler_service.time_slice import Counts

# Forms of a filter's verdict. Plain numbers: a request compares them some
# sixty times.
MASK, COMPARISONS, ROWS, ONE_HOST = range(4)

# More instances than any host takes.
_MOST_INSTANCES = 2**31

# A filter in the plan of a request: the filter, its form, its verdict (None:
# every host passes, or not evaluated yet), and whether it is evaluated for
# every instance. A plain tuple: a request has some twenty of them.
Step = tuple[HostFilter, int, Any, bool]


class FilterResult(NamedTuple):
    """The hosts that a filter passes by itself, bool[n]."""

    filter: HostFilter
    mask: Mask


def in_order(
    filters: Sequence[HostFilter], checks: Sequence[HostFilter]
) -> tuple[HostFilter, ...]:
    """Return all filters of a pipeline in the order in which they run.

    The order does not change which hosts pass, only the cost, and the count of
    hosts that each filter rejects:

    1. The mandatory filters: a refusal shows first how many hosts are
       candidates at all.
    2. The configured filters that evaluate all hosts at once, in the order
       of the configuration, which operators expect in the counts. Their
       cost does not depend on the hosts that are left.
    3. The capacity check of the claim. The capacity filters come before
       it, since their reasons are more precise. After it the check of what
       earlier instances of the request take.
    4. The configured filters that visit hosts one by one, in the order of
       the configuration. Each host that is left costs a call.

    :param filters: the configured filters
    :param checks: those of step 3
    """
    at_once = [each for each in filters if each.vectorised]
    by_host = [each for each in filters if not each.vectorised]
    return (*MANDATORY_FILTERS, *at_once, *checks, *by_host)


def is_plugin(part: Any) -> bool:
    """Whether a filter or weigher is not one of this package."""
    return not type(part).__module__.startswith('scheduler_service.')


class Filtering:
    """The filters of a pipeline, in order.

    :param check_room: whether hosts need free capacity for all amounts of a
        claim; false where no claim follows
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        settings: Settings,
        check_room: bool = True,
    ) -> None:
        self.resources = CapacityCheck(filters)
        self.settings = settings
        room = (self.resources,) if check_room else ()
        self._earlier = EarlierInstances(filters)
        checks = *room, self._earlier
        zone = AvailabilityZone()
        named = any(
            isinstance(each, AvailabilityZoneFilter) for each in filters
        )
        every = filters if named else (zone, *filters)
        self._all = [
            _with_preparation(each) for each in in_order(every, checks)
        ]
        # Forcing a host overrides the configured filters.
        forced = zone, Enabled()
        self._forced = [
            _with_preparation(each) for each in in_order(forced, room)
        ]
        # Others than those of this package may read what instances hosts have.
        self.has_row_plugins = any(
            form == ROWS and is_plugin(each) for each, form, _ in self._all
        )
        self._rebuild = [step for step in self._all if step[0].rebuild]
        self._reads_caller = bool(settings.isolated_images) or any(
            map(is_plugin, filters)
        )

    def reads_caller(self, table: HostTable) -> bool:
        """Whether a filter may read the caller or the id of the image."""
        return self._reads_caller or table.any_aggregate_has(
            METADATA_PREFIX, starts=True
        )

    def steps(self, table: HostTable, request: Request) -> list[Step]:
        """Return the filters that run for the request, in order.

        Verdicts that hold for all of its instances are computed here.

        :raises FilterFault: a filter failed
        """
        filters = self._all
        if request.forced and not request.hint('_nova_check_type'):
            filters = self._forced
        elif request.is_rebuild:
            filters = self._rebuild
        settings = self.settings
        steps: list[Step] = []
        try:
            for host_filter, form, prepare in filters:
                verdict = (
                    None
                    if prepare is None
                    else prepare(table, request, settings)
                )
                each_time = prepare is None
                if form == MASK and verdict is not None:
                    each_time = verdict is EACH_TIME
                    verdict = self._kept_mask(
                        host_filter, verdict, table, request
                    )
                elif form == COMPARISONS and not verdict:
                    verdict = None
                steps.append((host_filter, form, verdict, each_time))
        except BaseException as fault:
            errors.raise_named(host_filter.name, fault)
        return steps

    def _kept_mask(
        self,
        host_filter: HostFilter,
        key: Any,
        table: HostTable,
        request: Request,
    ) -> Mask | None:
        """Return the mask under a filter's key; None: every host passes."""
        if key is EACH_TIME:
            return None
        settings = self.settings
        return table.topology.mask(
            (host_filter.name, key),
            lambda: host_filter.mask(table, request, settings),
        )

    def steps_again(
        self,
        table: HostTable,
        request: Request,
        steps: Sequence[Step],
        again: Callable[[HostFilter], bool],
    ) -> list[Step]:
        """Return the steps with filters that name hosts evaluated again.

        For the next instance of a request, or for a request like an earlier
        one on the same topology.

        :param again: says which of these filters
        :raises FilterFault: a filter failed
        """
        return [
            (
                host_filter,
                form,
                self._evaluate(host_filter, form, table, request, None)
                if form == ROWS and again(host_filter)
                else verdict,
                each_time,
            )
            for host_filter, form, verdict, each_time in steps
        ]

    def run(
        self,
        table: HostTable,
        request: Request,
        steps: Sequence[Step],
    ) -> tuple[Mask, Counts]:
        """Return the hosts that pass every filter, and count them.

        :param steps: as :meth:`steps` returned them
        :return: bool[n], and (filter, hosts before, hosts after) of filters
        :raises FilterFault: a filter failed
        """
        left = len(table)
        passed = np.ones(left, np.bool_)
        counts: Counts = []
        for host_filter, form, verdict, each_time in steps:
            before = left
            if each_time:
                verdict = self._evaluate(
                    host_filter, form, table, request, passed
                )
            if verdict is not None:
                _and(passed, form, verdict)
                left = int(np.count_nonzero(passed))
            elif host_filter.mandatory:
                # Mandatory filters are counted only where they restrict the
                # request.
                continue
            counts.append((host_filter.name, before, left))
            if not left:
                break
        return passed, counts

    def run_again(
        self,
        table: HostTable,
        request: Request,
        steps: Sequence[Step],
        passed: Mask,
        changed: Rows,
    ) -> None:
        """Clear hosts that do not pass for the next instance of a request.

        Filters that run once for a request are not evaluated again.

        :param steps: as :meth:`steps_again` returned them
        :param passed: bool[n], hosts that passed for the previous instance
        :param changed: rows whose load changed since
        """
        for host_filter, form, verdict, each_time in steps:
            if each_time and not host_filter.once:
                verdict = self._evaluate(
                    host_filter, form, table, request, passed
                )
            if verdict is None or (form == MASK and not each_time):
                continue
            if form == COMPARISONS:
                for comparison in verdict:
                    passed[changed] &= comparison.at(changed)
            else:
                _and(passed, form, verdict)

    def results(
        self, table: HostTable, request: Request
    ) -> list[FilterResult]:
        """Return the result of each filter for every host.

        The capacity check rejects a host only where every configured capacity
        filter passes it: their reasons are more precise.
        """
        every = np.ones(len(table), np.bool_)
        roomy = every
        results = []
        for host_filter, form, verdict, each_time in self.steps(
            table, request
        ):
            mask = every.copy()
            if each_time:
                verdict = self._evaluate(
                    host_filter, form, table, request, every
                )
            if verdict is not None:
                _and(mask, form, verdict)
            if isinstance(host_filter, CapacityFilter):
                roomy = roomy & mask
            elif host_filter is self.resources:
                mask |= ~roomy
            results.append(FilterResult(host_filter, mask))
        return results

    def rooms(
        self, table: HostTable, request: Request, rows: Rows, placed: Ints
    ) -> dict[str, Ints]:
        """Return how many more instances each of some hosts takes, int64[m].

        See :meth:`HostPipeline.rooms`.
        """
        rooms = {
            name: self.resources.room(table, name, self.settings)[rows]
            // amount
            for name, amount in request.resources.items()
            if name in table.resources
        }
        for host_filter, *_ in () if request.forced else self._all:
            if (
                isinstance(host_filter, CountFilter)
                and host_filter.column == 'num_instances'
            ):
                with errors.naming(host_filter.name):
                    limit = host_filter.limit(table, self.settings)
                count = table.number('num_instances')
                rooms[host_filter.name] = np.ceil(limit - count)[rows]
        found = {
            name: np.clip(room, 0, _MOST_INSTANCES).astype(np.int64)
            for name, room in rooms.items()
        }
        most = np.full(len(rows), _MOST_INSTANCES)
        for room in found.values():
            most = np.minimum(most, room)
        found.update(
            self._earlier.rooms(
                table, request, self.settings, rows, placed, most
            )
        )
        return found

    def label(
        self,
        table: HostTable,
        request: Request,
        host_filter: HostFilter,
        rows: Rows,
    ) -> str:
        """Return what hosts lack that a filter rejects: a class, or its name.

        :param rows: of the hosts, int64[m]
        """
        if isinstance(host_filter, CapacityFilter):
            return host_filter.resource
        if host_filter is not self.resources:
            return host_filter.name
        for name in request.resources:
            if name not in table.resources:
                return name
        return self.resources.scarcest(table, request, self.settings, rows)

    def _evaluate(
        self,
        host_filter: Any,
        form: int,
        table: HostTable,
        request: Request,
        among: Mask | None,
    ) -> Any:
        try:
            if form == ROWS:
                return host_filter.row_set(table, request, self.settings)
            if form == ONE_HOST:
                return host_filter.passing(table, request, among)
            return host_filter.mask(table, request, self.settings)
        except BaseException as fault:
            errors.raise_named(host_filter.name, fault)


def _with_preparation(host_filter: HostFilter) -> tuple[HostFilter, int, Any]:
    """Return a filter, its form, and the method that plans a request.

    The method is None for a filter that visits the hosts left.
    """
    if isinstance(host_filter, ComparisonFilter):
        return host_filter, COMPARISONS, host_filter.comparisons
    if isinstance(host_filter, RowFilter):
        return host_filter, ROWS, host_filter.row_set
    if isinstance(host_filter, OneHostFilter):
        return host_filter, ONE_HOST, None
    return host_filter, MASK, host_filter.mask_key


def is_counted(step: Step) -> bool:
    """Whether a step that is not evaluated each time is among the counts.

    Mandatory filters are, where they restrict the request.
    """
    host_filter, _, verdict, _ = step
    return verdict is not None or not host_filter.mandatory


def _and(passed: Mask, form: int, verdict: Any) -> None:
    """Clear *passed* where a host does not pass."""
    if form == COMPARISONS:
        for column, operator, value in verdict:
            passed &= operator(column, value)
    elif form != ROWS:
        passed &= verdict
    elif verdict.passes:
        kept = passed[verdict.rows]
        passed[:] = False
        passed[verdict.rows] = kept
    else:
        passed[verdict.rows] = False


def as_rows(counts: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the counts of a funnel as explanations have them."""
    return [
        {'filter': name, 'start': start, 'end': end}
        for name, start, end in counts
    ]
