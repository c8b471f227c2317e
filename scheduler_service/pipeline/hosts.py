"""One host request on one table: filter, weigh, choose, explain.

:class:`HostPipeline` is what the engine, the extender face and the
conformance cases call. The engine's pipeline belongs to the engine's thread;
:meth:`HostPipeline.filter_hosts`, :meth:`HostPipeline.weigh_hosts`,
:meth:`HostPipeline.filter_results` and :meth:`HostPipeline.evaluate` may be
called by any thread on a table of its own.

An :class:`Evaluation` keeps filter results and weights of one request while
its table stays; one thread at a time uses it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from scheduler_service import errors, time_slice
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import Floats, Ints, Mask, Rows
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.capacity import CapacityFilter
from scheduler_service.filters.hosts.affinity_filter import (
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.filters.hosts.pci_passthrough_filter import (
    PciPassthroughFilter,
)
from scheduler_service.model import Request
from scheduler_service.pipeline import explain
from scheduler_service.pipeline.capacity_check import CapacityCheck
from scheduler_service.pipeline.filtering import (
    Filtering,
    FilterResult,
    Step,
)
from scheduler_service.pipeline.mandatory_filters import Aggregates, Traits
from scheduler_service.pipeline.search import HostSearch
from scheduler_service.pipeline.search_cache import CachedSearch, SearchCache
from scheduler_service.pipeline.selection import (
    Assignment,
    Bonuses,
    ScheduleResult,
    SelectionBuilder,
)
from scheduler_service.pipeline.weighing import (
    FINALISTS,
    RandomSource,
    Ranking,
    Term,
    Weighing,
)
from scheduler_service.settings import Settings
from scheduler_service.time_slice import Counts
from scheduler_service.weighers.affinity_weigher import (
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from scheduler_service.weighers.base import ServerGroupWeigher, Weigher

_DOUBTED = (CapacityFilter, CapacityCheck, Aggregates, Traits)
_REPORTED = (ComputeFilter, NUMATopologyFilter, PciPassthroughFilter)
_STRICT = {
    each.policy: each.name
    for each in (ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter)
}
_SOFT = {
    each.policy: each
    for each in (
        ServerGroupSoftAffinityWeigher,
        ServerGroupSoftAntiAffinityWeigher,
    )
}


class HostPipeline:
    """The configured filters and weighers, in order.

    Requests are judged as they are: of those with dedicated CPUs, callers
    take the form of :meth:`Request.forms` that hosts offer.

    :param check_room: whether hosts need free capacity for all amounts of a
        claim; false where no claim follows
    :param cache: keeps what requests have in common; None: nothing is kept
    :ivar cache: the same
    :ivar group_policies: of server groups, those that it enforces
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        weighers: Sequence[Weigher],
        settings: Settings,
        check_room: bool = True,
        cache: SearchCache | None = None,
    ) -> None:
        self.settings = settings
        self.filters = tuple(filters)
        self._how = filters, weighers, settings, check_room
        self._filtering = Filtering(filters, settings, check_room)
        self._weighing = Weighing(weighers, settings)
        self.group_policies = GroupPolicies(filters, self._weighing)
        self._looks_for_devices = any(
            isinstance(each, PciPassthroughFilter) for each in filters
        )
        self.cache = cache
        self._builder = SelectionBuilder(
            filters, self._filtering.resources, settings
        )

    def check_devices(self, request: Request) -> None:
        """Check that a filter looks for the devices of a request.

        As in the compute service, what its API sends is not checked.

        :raises InvalidRequest: none that is enabled does
        """
        place = request.place_of_devices
        if place and not (request.lenient or self._looks_for_devices):
            raise errors.InvalidRequest.at(
                place,
                'no host is searched for devices, since '
                f'{PciPassthroughFilter.name} is not enabled '
                '(enabled_filters)',
                unsupported=place,
            )

    def for_another_thread(self) -> HostPipeline:
        """Return a pipeline with the same filters and weighers.

        It keeps nothing between requests: a cache belongs to one thread.
        """
        return HostPipeline(*self._how)

    def select(
        self,
        overlay: Overlay,
        request: Request,
        rng: RandomSource,
        spread: int = 1,
        bonuses: Bonuses | None = None,
        placed: dict[str, Assignment] | None = None,
    ) -> ScheduleResult:
        """Choose a host for every instance of the request, or none at all.

        Chosen places are assumed in *overlay*, none where the call raises.

        :param spread: choose at random among at least this number of the best
        :param bonuses: for each instance the hosts that it may be on, and
            what is added to their weights
        :param placed: gets the place of each instance; where it has some
            from an earlier turn, they are kept if they are still free
        :raises TimeSliceOver: other requests have their turn first
        :raises NoValidHost: with the reasons, as :mod:`explain` words them
        :raises FilterFault: a filter or weigher failed
        """
        table, uuids = overlay.table, request.instance_uuids
        several = request.num_instances > 1
        if placed is None:
            placed = {}
        # By hand: ``transaction`` takes 2 % of the time of a selection.
        start = overlay.begin(several)
        try:
            left: Sequence[int] = range(len(uuids))
            if placed:
                left = resume(self, overlay, request, placed)
            search = self._search(table, request, spread, bonuses)
            counts = search.filter()
            time_slice.note_filtered(counts)
            ranking = search.ranking(left[0])
            if ranking is None:
                raise self._refusal(table, request, counts, len(placed))
            reasons: dict[str, Any] = {}
            for turn, at in enumerate(left):
                if turn:
                    time_slice.check()
                if ranking is None:
                    raise self._refusal(table, request, counts, len(placed))
                row = ranking.pick(self.settings, rng, spread)
                reasons = reasons or {
                    'hosts': len(table),
                    'funnel': counts,
                    'passed': ranking.count,
                    **ranking.finalists(table, row),
                    'query': search.plan.query,
                }
                made = self._builder.assignment(table, row, uuids[at], request)
                placed[uuids[at]] = made
                overlay.assume(
                    row, made.amounts, made.placed, request.instance_group
                )
                if several:
                    following = left[turn + 1 : turn + 2] or [len(uuids)]
                    ranking = search.next(row, following[0])
            assignments = [placed[uuid] for uuid in uuids]
            self._builder.add_alternates(table, request, ranking, assignments)
            return ScheduleResult(assignments, reasons)
        except BaseException:
            overlay.forget(start)
            raise
        finally:
            if several:
                overlay.end()

    def _search(
        self,
        table: HostTable,
        request: Request,
        spread: int,
        bonuses: Bonuses | None,
    ) -> HostSearch | CachedSearch:
        settings, best = self.settings, 0
        if bonuses is None and not settings.shuffle_best_same_weighed_hosts:
            best = max(
                FINALISTS,
                settings.host_subset_size,
                spread,
                settings.max_attempts + request.num_instances,
            )
        search = HostSearch(
            self._filtering, self._weighing, table, request, bonuses, best
        )
        cache = self.cache
        if cache is not None and best and len(table) >= cache.min_hosts:
            return cache.search(search, best) or search
        return search

    def _refusal(
        self, table: HostTable, request: Request, counts: Counts, placed: int
    ) -> errors.NoValidHost:
        return explain.refusal(
            self.filter_results(table, request),
            explain.Subject(table, request, self.settings),
            counts,
            placed,
        )

    def filter_hosts(self, table: HostTable, request: Request) -> Mask:
        """Return the hosts that pass every filter, bool[n].

        :raises FilterFault: a filter failed
        """
        steps = self._filtering.steps(table, request)
        mask, _ = self._filtering.run(table, request, steps)
        return mask

    def masks(
        self, table: HostTable, request: Request
    ) -> Iterator[tuple[Request, Mask]]:
        """Yield each form of a request, and the hosts that pass, bool[n].

        :raises FilterFault: a filter failed
        """
        for form in request.forms(table.resources):
            yield form, self.filter_hosts(table, form)

    def room(self, table: HostTable, row: int, name: str) -> float:
        """Return the free capacity of a host for a resource class."""
        room = self._filtering.resources.room(table, name, self.settings)
        return float(room[row])

    def rooms(
        self, table: HostTable, request: Request, rows: Rows, placed: Ints
    ) -> dict[str, Ints]:
        """Return how many more instances each of some hosts takes, int64[m].

        By resource class, and by each filter that instances fill as well:
        placed one after the other, the least of these numbers fits.

        :param rows: hosts that pass, int64[m]
        :param placed: instances of the request that the table counts there,
            but of whose NUMA cells and devices hosts have not reported
        """
        return self._filtering.rooms(table, request, rows, placed)

    def ends(
        self, table: HostTable, request: Request, places: Iterable[Rows]
    ) -> list[str]:
        """Return for each of some places what leaves no host there.

        The name of the first filter after which no host is left, or of the
        resource class that hosts lack most, if it compares amounts. Empty:
        there is no host, or some pass.

        :param places: rows of the hosts of each
        """
        results = self.filter_results(table, request)
        ends = []
        for rows in places:
            name = ''
            for host_filter, mask in results if len(rows) else ():
                left = rows[mask[rows]]
                if not len(left):
                    name = self._filtering.label(
                        table, request, host_filter, rows
                    )
                    break
                rows = left
            ends.append(name)
        return ends

    def has_devices(
        self, table: HostTable, row: int, request: Request
    ) -> bool:
        """Whether a host that passes has the PCI devices of a request.

        :param request: that names the providers of its devices
        """
        for host_filter in self.filters:
            with errors.naming(host_filter.name):
                if not host_filter.has_devices(
                    table, row, request, self.settings
                ):
                    return False
        return True

    def filter_results(
        self, table: HostTable, request: Request
    ) -> list[FilterResult]:
        """Return the result of each filter for every host."""
        return self._filtering.results(table, request)

    def doubtful_hosts(self, table: HostTable, request: Request) -> Mask:
        """Return the hosts that only free capacity or others' data keep out.

        Of traits and aggregates: others may write them meanwhile. What else
        hosts report may change as well, and counts for nothing.

        :return: bool[n]
        """
        others = known = np.ones(len(table), np.bool_)
        for host_filter, mask in self.filter_results(table, request):
            if isinstance(host_filter, _DOUBTED):
                known = known & mask
            elif not isinstance(host_filter, _REPORTED):
                others = others & mask
        return others & ~known

    def evaluate(self, table: HostTable, request: Request) -> Evaluation:
        """Return the evaluation of a request on a table.

        :param table: must not change while the evaluation is used
        """
        return Evaluation(self._filtering, self._weighing, table, request)

    def weigh_hosts(
        self, table: HostTable, mask: Mask, request: Request
    ) -> Ranking | None:
        """Weigh the hosts of *mask*, bool[n]; None where there are none."""
        rows = np.flatnonzero(mask)
        if not len(rows):
            return None
        terms = self._weighing.terms(table, request)
        return self._weighing.rank_rows(table, rows, request, terms)


def resume(
    pipeline: HostPipeline,
    overlay: Overlay,
    request: Request,
    placed: dict[str, Assignment],
) -> list[int]:
    """Assume again the instances that earlier turns placed.

    Between two turns of a request none of its instances is assumed: other
    requests may have taken the capacity, and hosts may have changed. Instances
    that do not fit any more are dropped. A host is filtered with all but the
    last of its instances: where the last fits, the others did, too.

    :param overlay: in a transaction, with nothing assumed for the request
    :param placed: instance -> its place; instances that do not fit are removed
    :return: indexes of the instances that are left, at least one
    """
    by_row = _by_row(overlay.table, request, placed)
    while by_row:
        earlier = [
            assignment for some in by_row.values() for assignment in some[:-1]
        ]
        _assume(overlay, request, earlier)
        mask = pipeline.filter_hosts(overlay.table, request)
        full = [row for row in by_row if not mask[row]]
        if not full:
            last = [some[-1] for some in by_row.values()]
            _assume(overlay, request, last)
            time_slice.renew()
            break
        overlay.forget_last(len(earlier))
        for row in full:
            for assignment in by_row.pop(row):
                del placed[assignment.uuid]
    uuids = request.instance_uuids
    left = [at for at, uuid in enumerate(uuids) if uuid not in placed]
    request.placing = uuids[left[0]]
    return left


def _by_row(
    table: HostTable, request: Request, placed: dict[str, Assignment]
) -> dict[int, list[Assignment]]:
    """Return earlier assignments by the present row of their host.

    Instances that the request does not have any more, or whose host is gone,
    are dropped; so is the last where no instance would be left to place.
    """
    uuids = set(request.instance_uuids)
    ids = np.array(
        [assignment.host_id for assignment in placed.values()], np.int64
    )
    rows = np.searchsorted(table.ids, ids)
    there = np.isin(ids, table.ids).tolist()
    for (uuid, assignment), row, is_present in zip(
        list(placed.items()), rows.tolist(), there, strict=True
    ):
        assignment.row = row
        if not is_present or uuid not in uuids:
            del placed[uuid]
    if len(placed) == len(uuids):
        placed.popitem()
    by_row: dict[int, list[Assignment]] = {}
    for assignment in placed.values():
        by_row.setdefault(assignment.row, []).append(assignment)
    return by_row


def _assume(
    overlay: Overlay, request: Request, assignments: Sequence[Assignment]
) -> None:
    if assignments:
        overlay.assume_many(
            [assignment.row for assignment in assignments],
            assignments[0].amounts,
            [assignment.placed for assignment in assignments],
            request.instance_group,
        )


class GroupPolicies:
    """The policies that the configured filters and weighers enforce.

    :ivar strict: policies that a filter enforces, and each claim
    """

    def __init__(
        self, filters: Sequence[HostFilter], weighing: Weighing
    ) -> None:
        self.strict = frozenset(each.policy for each in filters if each.policy)
        self._weighing = weighing

    def check(self, table: HostTable, request: Request) -> None:
        """Check that the policies of a request's server groups hold.

        :raises ServerGroupNotEnforced: one does not
        """
        stored = request.stored_groups.values()
        uuids = {uuid for groups in stored for uuid in groups}
        for uuid in sorted(uuids | {request.instance_group or ''}):
            group = table.groups.get(uuid)
            lack = group and self._lack(table, group.policy)
            if group and lack:
                raise errors.ServerGroupNotEnforced(
                    f'Nothing enforces the policy {group.policy} of server '
                    f'group {uuid}: {" ".join(lack)}',
                    server_group=uuid,
                    policy=group.policy,
                    missing=lack[0],
                )

    def unenforced(self, table: HostTable) -> list[str]:
        """Return each policy of stored groups that is not, and why not."""
        counts = Counter(group.policy for group in table.groups.values())
        return [
            f'{policy} (groups: {count}): {" ".join(lack)}'
            for policy, count in sorted(counts.items())
            if (lack := self._lack(table, policy))
        ]

    def _lack(self, table: HostTable, policy: str) -> tuple[str, str] | None:
        """Return the filter or weigher that a policy lacks, and why."""
        if policy in _STRICT:
            if policy in self.strict:
                return None
            return _STRICT[policy], 'is not enabled (enabled_filters)'
        soft = _SOFT[policy]
        weighers = [
            each
            for each in self._weighing.weighers
            if isinstance(each, ServerGroupWeigher) and each.policy == policy
        ]
        if not weighers:
            return soft.name, 'is not enabled (weight_classes)'
        if any(self._weighing.counts(table, each) for each in weighers):
            return None
        return soft.name, f'does not count ({soft.multiplier_option} is 0)'


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
