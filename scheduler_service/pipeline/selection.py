"""What a request gets: assignments, alternates, and how they came about.

A builder belongs to the thread of its pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.topology import Topology
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Placement, Request, Selection
from scheduler_service.pipeline.capacity_check import CapacityCheck
from scheduler_service.pipeline.filtering import as_rows
from scheduler_service.pipeline.weighing import Ranking, normalised
from scheduler_service.settings import Settings

# About 400 bytes each.
_KEPT = 65_536

# For each instance: store id of an allowed host -> addition to its weight.
Bonuses = Sequence[Mapping[int, float]]


class Assignment(msgspec.Struct):
    """One instance's place.

    :ivar amounts: resource class -> amount
    :ivar ratios: resource class -> allocation ratio of the claim, where a
        filter sets it
    """

    uuid: str
    row: int
    host_id: int
    amounts: dict[str, int]
    ratios: dict[str, float]
    placement: Placement
    placed: PlacedInstance


class ScheduleResult(msgspec.Struct):
    """What was chosen for a request, and how it came about.

    :ivar reasons: by column, of which :func:`explanation` makes rows. They are
        stored like this: most decisions are never read.
    """

    assignments: list[Assignment]
    reasons: dict[str, Any]


def explanation(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the funnel and the finalists with their weights.

    :param columns: the reasons of a :class:`ScheduleResult`
    """
    best = columns['finalists']
    return {
        **columns,
        'funnel': as_rows(columns['funnel']),
        'finalists': [
            {
                'host': host,
                'node': node,
                'weight': weight,
                **_weights(best['weighers'], at),
                **({'chosen': True} if at == best.get('chosen') else {}),
            }
            for at, (host, node, weight) in enumerate(
                zip(
                    best['host'],
                    best.get('node', best['host']),
                    best['weight'],
                    strict=True,
                )
            )
        ],
    }


def _weights(weighers: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return what each weigher adds to a finalist, and of what it follows."""
    rows: dict[str, Any] = {'weights': {}, 'raw': {}, 'multipliers': {}}
    for name, (raw, low, high, factor) in weighers.items():
        own = factor[at] if isinstance(factor, list) else factor
        rows['raw'][name], rows['multipliers'][name] = raw[at], own
        rows['weights'][name] = normalised(raw[at], low, high, own)
    return rows


def placed_by(
    request: Request, uuid: str, host: str, node: str
) -> PlacedInstance:
    """Return an instance of a request on the node that it gets."""
    return PlacedInstance(
        uuid,
        host,
        node,
        request.project_id,
        request.flavor.flavorid,
        request.image_pairs,
        claimed=True,
    )


class SelectionBuilder:
    """Makes assignments and alternates of rows.

    Selections of hosts are cached until hosts or aggregates change.
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        resources: CapacityCheck,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._filters = tuple(filters)
        self._numa = tuple(
            host_filter
            for host_filter in filters
            if type(host_filter).numa_limits is not HostFilter.numa_limits
        )
        self._topology: Topology | None = None
        self._kept: dict[tuple[int, bool], Selection] = {}

    def assignment(
        self, table: HostTable, row: int, uuid: str, request: Request
    ) -> Assignment:
        """Return the assignment of an instance to the host of a row."""
        selection = self._selection(table, row, request)
        return Assignment(
            uuid=uuid,
            row=row,
            host_id=table.ids.item(row),
            amounts=request.resources,
            ratios=self._ratios(table, row, request)
            if self._resources.stating
            else {},
            placement=Placement(instance_uuid=uuid, selected=selection),
            placed=placed_by(request, uuid, selection.host, selection.node),
        )

    def _ratios(
        self, table: HostTable, row: int, request: Request
    ) -> dict[str, float]:
        ratios = {}
        for name in request.resources:
            stated = self._resources.ratios(table, self._settings, name)
            if stated is not None:
                ratios[name] = float(stated[1][row])
        return ratios

    def add_alternates(
        self,
        table: HostTable,
        request: Request,
        ranking: Ranking | None,
        assignments: Sequence[Assignment],
    ) -> None:
        """Offer the next best hosts of the same cell; none is claimed.

        :param ranking: of the hosts that are left; None: there are none
        """
        count = self._settings.max_attempts - 1
        if count < 1 or ranking is None:
            return
        taken = {assignment.row for assignment in assignments}
        best = ranking.best(count + len(taken))
        cells = table.coded['cell_uuid'].values_at(best)
        by_cell: dict[str | None, list[Selection]] = {}
        for row, cell in zip(best, cells, strict=True):
            offers = by_cell.setdefault(cell, [])
            if row not in taken and len(offers) < count:
                offers.append(self._selection(table, row, request))
        for assignment in assignments:
            cell = assignment.placement.selected.cell
            assignment.placement.alternates = by_cell.get(cell, [])[:count]

    def _selection(
        self, table: HostTable, row: int, request: Request
    ) -> Selection:
        """Return the selection of a host; all but NUMA is cached."""
        forced = request.forced
        if self._topology is not table.topology or len(self._kept) > _KEPT:
            self._topology = table.topology
            self._kept = {}
        selection = self._kept.get((row, forced))
        if selection is None:
            selection = self._make(table, row, forced)
            self._kept[row, forced] = selection
        for host_filter in () if forced else self._numa:
            with errors.naming(host_filter.name):
                limits = host_filter.numa_limits(
                    table, row, request, self._settings
                )
            if limits:
                return msgspec.structs.replace(selection, numa_limits=limits)
        return selection

    def _make(self, table: HostTable, row: int, forced: bool) -> Selection:
        limits: dict[str, int] = {}
        try:
            for host_filter in () if forced else self._filters:
                stated = host_filter.limits(table, row, self._settings)
                limits.update((name, int(v)) for name, v in stated.items())
        except BaseException as fault:
            errors.raise_named(host_filter.name, fault)
        return Selection(
            host=table.host_at(row),
            node=table.node_at(row),
            uuid=table.coded['uuid'].at(row),
            zone=table.zone_at(row, self._settings.default_availability_zone),
            cell=table.coded['cell_uuid'].at(row),
            limits=limits,
        )
