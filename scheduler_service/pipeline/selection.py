"""What is answered for the hosts that were picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.view import TableView
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Placement, Request, Selection
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.mandatory_filters import Resources
from scheduler_service.pipeline.weigh import Ranking
from scheduler_service.settings import Settings

if TYPE_CHECKING:
    from scheduler_service.pipeline.shortlist import Shortlist

# Of all shapes of requests together, about 400 bytes each.
_REMEMBERED = 65_536
# How many of the next best are looked at when one is new.
_AHEAD = 48

_encode = msgspec.json.Encoder().encode
_NO_IMAGE: frozenset[tuple[str, str]] = frozenset()

# For each instance: store id of a host -> what to add to its weight.
Advice = Sequence[Mapping[int, float]]


class Assignment(msgspec.Struct):
    """One instance's place: the row, what it takes, and at which ratios."""

    uuid: str
    row: int
    host_id: int
    amounts: dict[str, int]
    ratios: dict[str, float]
    placement: Placement
    placed: PlacedInstance
    _told: bytes | None = None

    def told(self) -> bytes:
        """Return the placement as JSON, once nothing is added any more."""
        if self._told is None:
            self._told = _encode(self.placement)
        return self._told


class ScheduleResult(msgspec.Struct):
    """What the pipeline chose for a request, and how it came to it.

    :ivar standing: as :meth:`Ranking.told` has it
    """

    picked: list[Assignment]
    funnel: Funnel
    standing: dict[str, Any]
    query: str = ''

    def told(self) -> dict[str, Any]:
        """Return what :meth:`explanation` does, for the encoder alone.

        BatchFuture of it, which come again and again, are JSON already.
        """
        return {**self.funnel.told(), **self.standing, 'query': self.query}

    def explanation(self) -> dict[str, Any]:
        """Return the funnel and the finalists with their weights."""
        found: dict[str, Any] = msgspec.json.decode(_encode(self.told()))
        return found


class SelectionBuilder:
    """Makes placements of rows.

    Of a request whose shape came before, ``made`` is what is kept of that;
    selections made before are ``known`` by their rows.

    :param forget: lets go of all that are known
    """

    def __init__(
        self,
        filters: Sequence[HostFilter],
        resources: Resources,
        settings: Settings,
        forget: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._forget = forget
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
        made: Shortlist | None = None,
    ) -> Assignment:
        """Return what an instance gets on a row of the ranking."""
        known = None if made is None else made.selections
        # Those of the shape, which need not be worked out again.
        amounts = request.resources if made is None else made.amounts
        ratios: dict[str, float] = {}
        if self._stating:
            view = TableView.of(table, np.array([row]))
            for name in amounts:
                stated = self._resources.ratios(view, self._settings, name)
                if stated is not None:
                    ratios[name] = float(stated[1][0])
        (selection,) = self._of(table, [row], request, ranking, known)
        return Assignment(
            uuid=uuid,
            row=row,
            host_id=table.ids.item(row),
            amounts=amounts,
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
        known: dict[int, Selection] | None,
    ) -> list[Selection]:
        """Return what is answered for rows, made once for each shape.

        Where the shape comes again, those that come next are made too.
        """
        if known is None:
            return self._selections(table, rows, request)
        if not known.keys() >= {*rows}:
            if self._made > _REMEMBERED:
                self._forget()
                self._made = 0
            wanted = {*rows, *ranking.best(_AHEAD)}
            new = sorted(row for row in wanted if row not in known)
            made = self._selections(table, new, request)
            known.update(zip(new, made, strict=True))
            self._made += len(new)
        return [known[row] for row in rows]

    def _selections(
        self, table: HostTable, rows: list[int], request: Request
    ) -> list[Selection]:
        view = TableView.of(table, np.array(rows, np.int64))
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
        picked: list[Assignment],
        made: Shortlist | None = None,
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
        known = None if made is None else made.selections
        offers = self._of(table, spare, request, ranking, known)
        for one in picked:
            cell = one.placement.selected.cell
            one.placement.alternates = [
                offer for offer in offers if offer.cell == cell
            ][:wanted]


def _as_placed(
    uuid: str, selection: Selection, request: Request
) -> PlacedInstance:
    """Return what the index of instances keeps of one that is placed."""
    properties = request.image.properties if request.image else None
    image = _NO_IMAGE
    if properties:
        image = frozenset((key, str(v)) for key, v in properties.items())
    return PlacedInstance(
        uuid,
        selection.host,
        selection.node,
        request.project_id,
        request.flavor.flavorid,
        image,
        claimed=True,
    )
