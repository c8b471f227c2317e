"""What is answered for the hosts that were picked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import Placed
from scheduler_service.columns.view import RowsOf
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Placement, Request, Selection
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.shortlists import Shortlists
from scheduler_service.pipeline.steps import Resources
from scheduler_service.pipeline.weigh import Ranking
from scheduler_service.settings import Settings

# Of all shapes of requests together, about 400 bytes each.
_REMEMBERED = 65_536
# How many of the next best are looked at when one is new.
_AHEAD = 48

# For each instance: store id of a host -> what to add to its weight.
Advice = Sequence[Mapping[int, float]]


@dataclasses.dataclass(slots=True)
class Picked:
    """One instance's place: the row, what it takes, and at which ratios."""

    uuid: str
    row: int
    host_id: int
    amounts: dict[str, int]
    ratios: dict[str, float]
    placement: Placement
    placed: Placed


@dataclasses.dataclass(slots=True)
class Choice:
    """What the pipeline chose for a request, and how it came to it.

    :ivar standing: the finalists with their weights, and how many passed
    """

    picked: list[Picked]
    funnel: Funnel
    standing: dict[str, Any]
    query: str = ''

    def explanation(self) -> dict[str, Any]:
        """Return the funnel and the finalists with their weights."""
        return {
            **self.funnel.to_dict(),
            **self.standing,
            'query': self.query,
        }


class Picker:
    """Makes placements of rows.

    :param shortlists: have the selections made before, for the shape of a
        request that came before
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        resources: Resources,
        settings: Settings,
        shortlists: Shortlists,
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._known = shortlists.selections
        self._forget = shortlists.forget_selections
        self._made = 0
        self._limiting = tuple(
            one for one in filters if type(one).limits is not HostFilter.limits
        )
        self._stating = any(
            type(one).ratios is not HostFilter.ratios for one in filters
        )

    def pick(
        self,
        table: HostTable,
        row: int,
        uuid: str,
        request: Request,
        ranking: Ranking,
    ) -> Picked:
        """Return what an instance gets on a row of the ranking."""
        ratios: dict[str, float] = {}
        if self._stating:
            view = RowsOf.of(table, np.array([row]))
            for name in request.resources:
                stated = self._resources.ratios(view, self._settings, name)
                if stated is not None:
                    ratios[name] = float(stated[1][0])
        (selection,) = self._of(table, [row], request, ranking)
        return Picked(
            uuid=uuid,
            row=row,
            host_id=int(table.ids[row]),
            amounts=request.resources,
            ratios=ratios,
            placement=Placement(instance_uuid=uuid, selected=selection),
            placed=_as_placed(uuid, selection, request),
        )

    def _of(
        self,
        table: HostTable,
        rows: list[int],
        request: Request,
        ranking: Ranking,
    ) -> list[Selection]:
        """Return what is answered for rows, made once for each shape.

        Where the shape comes again, those that come next are made too.
        """
        known = self._known(table, request)
        if known is None:
            return self._selections(table, rows, request)
        if not known.keys() >= set(rows):
            if self._made > _REMEMBERED:
                self._forget()
                self._made = 0
            wanted = {*rows, *ranking.best(_AHEAD)}
            new = sorted(wanted - known.keys())
            made = self._selections(table, new, request)
            known.update(zip(new, made, strict=True))
            self._made += len(new)
        return [known[row] for row in rows]

    def _selections(
        self, table: HostTable, rows: list[int], request: Request
    ) -> list[Selection]:
        view = RowsOf.of(table, np.array(rows, np.int64))
        return [self._selection(view, at, request) for at in range(len(rows))]

    def _selection(
        self, table: HostTable, row: int, request: Request
    ) -> Selection:
        limits: dict[str, int] = {}
        for one in () if request.forced else self._limiting:
            found = one.limits(table, row, request, self._settings)
            limits.update((name, int(v)) for name, v in found.items())
        return Selection(
            host=table.host_at(row),
            node=table.node_at(row),
            uuid=table.coded['uuid'].at(row),
            zone=table.zone_at(row, self._settings.default_availability_zone),
            cell=table.coded['cell_uuid'].at(row),
            limits=limits,
        )

    def add_alternates(
        self,
        table: HostTable,
        request: Request,
        ranking: Ranking,
        picked: list[Picked],
    ) -> None:
        """Offer the next best hosts of the same cell, not claimed, to all."""
        wanted = self._settings.max_attempts - 1
        if wanted < 1:
            return
        taken = {one.row for one in picked}
        spare = [
            row
            for row in ranking.best(wanted + len(taken))
            if row not in taken
        ]
        offers = self._of(table, spare, request, ranking)
        for one in picked:
            cell = one.placement.selected.cell
            one.placement.alternates = [
                offer for offer in offers if offer.cell == cell
            ][:wanted]


def _as_placed(uuid: str, selection: Selection, request: Request) -> Placed:
    """Return what the index of instances keeps of one that is placed."""
    flavorid = request.flavor.flavorid
    return Placed(
        uuid=uuid,
        host=selection.host,
        node=selection.node,
        project_id=request.project_id,
        flavorid=None if flavorid is None else str(flavorid),
        image=frozenset(
            (key, str(v)) for key, v in request.image_properties.items()
        ),
        claimed=True,
    )
