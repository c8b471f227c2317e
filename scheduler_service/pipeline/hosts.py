"""One host request on one frozen table: filter, weigh, choose, explain.

The order is cheap and selective first: the steps every request takes, the
configured filters in their order, room for the claim, and last the filters
that visit hosts one by one. Masks are ANDed, and the count after each is the
funnel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import Mask
from scheduler_service.filters.hosts.base import HostFilter, OneHostFilter
from scheduler_service.filters.hosts.capacity import CapacityFilter
from scheduler_service.model import Request
from scheduler_service.pipeline import explain, mandatory_filters
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.selection import (
    Advice,
    Assignment,
    ScheduleResult,
    SelectionBuilder,
)
from scheduler_service.pipeline.shortlists import Said, Shortlists
from scheduler_service.pipeline.weigh import FINALISTS, Ranking, rank
from scheduler_service.request_filters import scope_of
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher

if TYPE_CHECKING:
    from random import Random


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
        self.weighers = tuple(weighers)
        self.filters = tuple(filters)
        self.resources = mandatory_filters.Resources(filters)
        self._room = (self.resources,) if check_room else ()
        self._masks = tuple(one for one in filters if one.vectorised)
        self._slow = tuple(one for one in filters if not one.vectorised)
        self.shortlists = Shortlists(self)
        self._picker = SelectionBuilder(
            filters,
            self.resources,
            settings,
            self.shortlists.forget_selections,
        )
        # How many of the best have to be known.
        self._need = max(
            FINALISTS, settings.max_attempts, settings.host_subset_size
        )

    def choose(
        self,
        overlay: Overlay,
        request: Request,
        rng: Random,
        spread: int = 1,
        advice: Advice | None = None,
    ) -> ScheduleResult:
        """Choose a host for every instance of the request, or none at all.

        What is chosen is taken from *overlay*; nothing is where it raises.

        :param advice: for each instance the hosts it may be on, and what is
            to be added to their weights

        :param spread: choose at random among at least so many of the best

        :raises NoValidHost: with the reasons, as :mod:`explain` words them
        :raises FilterFault: a filter or weigher failed
        """
        if advice is None and request.shape is not None:
            return self._choose_one(overlay, request, rng, spread)
        with overlay.attempt():
            return self._choose(overlay, request, rng, spread, advice)

    def _choose(
        self,
        overlay: Overlay,
        request: Request,
        rng: Random,
        spread: int,
        advice: Advice | None,
    ) -> ScheduleResult:
        funnel = Funnel(len(overlay.table))
        mask: Mask | None = None
        first: Ranking | None = None
        picked: list[Assignment] = []
        for index, uuid in enumerate(request.instance_uuids):
            table = overlay.table
            mask = self.narrow(
                table, request, mask, funnel if index == 0 else None
            )
            told = None if advice is None else advice[index]
            ranking = self._advised(table, mask, request, told)
            if ranking is None:
                raise self._refusal(table, request, funnel, len(picked))
            first = first or ranking
            row = ranking.pick(self.settings, rng, spread)
            picked.append(
                self._picker.pick(table, row, uuid, request, ranking)
            )
            self._take(overlay, request, picked[-1])
        assert mask is not None
        assert first is not None
        if len(picked) > 1:
            mask = self.narrow(overlay.table, request, mask)
            told = None if advice is None else advice[-1]
            again = self._advised(overlay.table, mask, request, told)
        else:
            again = first
        if again is not None:
            self._picker.add_alternates(overlay.table, request, again, picked)
        query = self._query(overlay.table, request)
        return ScheduleResult(picked, funnel, first.told(overlay.table), query)

    def _advised(
        self,
        table: HostTable,
        mask: Mask,
        request: Request,
        told: Mapping[int, float] | None,
    ) -> Ranking | None:
        """Weigh the hosts that are left of those that were advised."""
        if told is None:
            return self.rank(table, mask, request)
        ids = np.array(sorted(told), np.int64)
        mask = mask & np.isin(table.ids, ids)
        ranking = self.rank(table, mask, request)
        if ranking is not None:
            more = np.array(
                [told[int(table.ids[row])] for row in ranking.rows]
            )
            ranking.totals += more
            ranking.parts.append(('extenders', more))
        return ranking

    def _choose_one(
        self, overlay: Overlay, request: Request, rng: Random, spread: int
    ) -> ScheduleResult:
        """Choose for one instance, by the best hosts of its shape."""
        table = overlay.table
        ranking, funnel, made = self.shortlists.ranking(
            table, request, max(self._need, spread)
        )
        if ranking is None:
            raise self._refusal(table, request, funnel, 0)
        row = ranking.pick(self.settings, rng, spread)
        (uuid,) = request.instance_uuids
        one = self._picker.pick(table, row, uuid, request, ranking, made)
        picked = [one]
        self._picker.add_alternates(table, request, ranking, picked, made)
        query = None if made is None else made.query
        if query is None:
            query = self._query(table, request)
        choice = ScheduleResult(picked, funnel, ranking.told(table), query)
        if made is not None:
            made.query = query
        if not overlay.trial:
            self._take(overlay, request, one)
            if made is not None:
                made.took(table, row)
        return choice

    def _query(self, table: HostTable, request: Request) -> str:
        """Return what the request filters ask of hosts."""
        aggregates = table.topology.aggregates
        return scope_of(request, aggregates, self.settings).query()

    def _refusal(
        self, table: HostTable, request: Request, funnel: Funnel, placed: int
    ) -> errors.NoValidHost:
        return explain.refusal(
            self.verdicts(table, request),
            explain.View(table, request, self.settings),
            funnel,
            placed,
        )

    def _take(
        self, overlay: Overlay, request: Request, picked: Assignment
    ) -> None:
        overlay.take(
            picked.row, picked.amounts, picked.placed, request.instance_group
        )

    def narrow(
        self,
        table: HostTable,
        request: Request,
        among: Mask | None = None,
        funnel: Funnel | None = None,
        said: Said | None = None,
    ) -> Mask:
        """Return bool[n]: hosts of *among* that pass every filter.

        With *among*, filters that run once for a request are not run again.

        :param said: gets every filter that was asked, with its mask
        """
        again = among is not None
        passed = np.ones(len(table), np.bool_) if among is None else among
        left = int(np.count_nonzero(passed))
        for one in self._active(request):
            if again and one.once:
                continue
            mask = self._verdict(one, table, request, passed)
            if said is not None:
                said.append((one, mask))
            before = left
            if mask is not None:
                passed = passed & mask
                left = int(np.count_nonzero(passed))
            if funnel is not None and (
                mask is not None or one.name[0].isupper()
            ):
                # Steps of the pipeline's own that said nothing are left out.
                funnel.counts.append((one.name, before, left))
            if not left:
                break
        return passed

    def verdicts(
        self, table: HostTable, request: Request
    ) -> list[tuple[HostFilter, Mask]]:
        """Return what each filter says of every host, bool[n] each.

        Room for the claim is blamed only where every capacity filter that
        is configured lets the host pass: they say the same, and better.
        """
        whole = np.ones(len(table), np.bool_)
        roomy = whole
        found = []
        for one in self._active(request):
            mask = self._verdict(one, table, request, whole)
            mask = whole if mask is None else mask
            if isinstance(one, CapacityFilter):
                roomy = roomy & mask
            elif one is self.resources:
                mask = mask | ~roomy
            found.append((one, mask))
        return found

    def _active(self, request: Request) -> list[HostFilter]:
        """Return the filters that run for the request, in order."""
        if request.forced and not request.scheduler_hints.get(
            '_nova_check_type'
        ):
            return [*mandatory_filters.MANDATORY_FILTERS, *self._room]
        chain = [
            *mandatory_filters.MANDATORY_FILTERS,
            *self._masks,
            *self._room,
            *self._slow,
        ]
        if request.is_rebuild:
            return [one for one in chain if one.rebuild]
        return chain

    def _verdict(
        self, one: HostFilter, table: HostTable, request: Request, among: Mask
    ) -> Mask | None:
        """Ask one filter; what it raises becomes an error that names it."""
        try:
            if isinstance(one, OneHostFilter):
                return one.passing(table, request, among)
            shape = one.shape(request, self.settings)
            if shape is None:
                return one.mask(table, request, self.settings)
            found: Mask | None = table.topology.remember(
                ('mask', one.name, shape),
                lambda: one.mask(table, request, self.settings),
            )
            return found
        except errors.SchedulerError:
            raise
        except Exception as fault:
            raise errors.FilterFault(
                f'{one.name} failed: {type(fault).__name__}: {fault}',
                filter=one.name,
                fault=type(fault).__name__,
            ) from fault

    def rank(
        self, table: HostTable, mask: Mask, request: Request
    ) -> Ranking | None:
        """Weigh the hosts of *mask*; None where there are none."""
        if not mask.any():
            return None
        return rank(table, mask, request, self.weighers, self.settings)
