"""Shortlists by the shape of requests: made when a shape comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.judging import Judged
from scheduler_service.pipeline.shortlist import Shortlist
from scheduler_service.pipeline.weigh import Ranking
from scheduler_service.pipeline.weights import Unfit

if TYPE_CHECKING:
    from scheduler_service.pipeline.hosts import HostPipeline

Said = list[tuple[HostFilter, Mask | None]]
# How many hosts all shortlists together may be over: about 40 bytes each.
_ROWS = 2_000_000
_FEWEST = 4
_SEEN = 1024


class Found(NamedTuple):
    """What a request finds.

    :ivar ranking: None where no host passes
    :ivar made: the shortlist of its shape, where that came before
    """

    ranking: Ranking | None
    funnel: Funnel
    made: Shortlist | None


class Shortlists:
    """The shortlists of a pipeline; of one thread alone."""

    def __init__(self, pipeline: HostPipeline) -> None:
        self._pipeline = pipeline
        self._made: dict[bytes, Shortlist] = {}
        self._seen: dict[bytes, None] = {}

    def ranking(self, table: HostTable, request: Request, best: int) -> Found:
        """Return what a request with a shape finds.

        :param best: how many of the first hosts have to be there, at least
        """
        shape = request.shape
        assert shape is not None
        ties = self._pipeline.settings.shuffle_best_same_weighed_hosts
        made = self._made.pop(shape, None)
        if made is not None:
            found = made.ranking(table, request, best, ties)
            if found is not None:
                # Put back as the newest.
                self._made[shape] = made
                return Found(found, made.funnel(table), made)
        return self._pass(table, request, shape, made)

    def catch_up(
        self, table: HostTable, request: Request, ahead: bool
    ) -> None:
        """Take in what changed now, rather than when somebody waits.

        :param ahead: whether many requests like this one follow
        """
        made = self._made.get(request.shape) if request.shape else None
        if made is not None and made.is_of(table.topology):
            made.catch_up(table, request, ahead)

    def forget_selections(self) -> None:
        """Let go of what was answered for rows."""
        for made in self._made.values():
            made.selections.clear()

    def _pass(
        self,
        table: HostTable,
        request: Request,
        shape: bytes,
        before: Shortlist | None,
    ) -> Found:
        """Look at all hosts; keep the best of a shape that came before.

        :param before: what was kept of the shape till now
        """
        again = shape in self._seen
        said: Said | None = [] if again else None
        funnel = Funnel(len(table))
        mask = self._pipeline.narrow(table, request, None, funnel, said)
        ranking = self._pipeline.rank(table, mask, request)
        if said is not None and ranking is not None:
            self._make(table, request, shape, said)
        made = self._made.get(shape)
        if before is not None and made is not None:
            made.inherit(before)
        if not again:
            if len(self._seen) >= _SEEN:
                self._seen.pop(next(iter(self._seen)))
            self._seen[shape] = None
        return Found(ranking, funnel, made)

    def _make(
        self, table: HostTable, request: Request, shape: bytes, said: Said
    ) -> None:
        pipeline = self._pipeline
        judged = []
        for one, mask in said:
            judge = Judged.of(one, mask, request, pipeline.settings)
            if judge is None:
                return
            judged.append(judge)
        try:
            made = Shortlist(
                table, request, pipeline.settings, judged, pipeline.weighers
            )
        except Unfit:
            return
        while len(self._made) >= max(_FEWEST, _ROWS // max(len(table), 1)):
            self._made.pop(next(iter(self._made)))
        self._made[shape] = made
