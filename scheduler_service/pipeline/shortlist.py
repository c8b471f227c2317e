"""What a pass over all hosts found, kept true as single hosts change.

Requests of one shape follow each other, and between two of them few hosts
have changed. A shortlist keeps who passed, the raw weights, and some thousand
of the best; a change costs the rows that changed. The weights of the best
are worked out as over all hosts, to the last bit, for the highest and lowest
raw weights of all others are kept too. Where it is not certain that the best
of all are among those kept, there is no answer, and all hosts are looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.table import HostTable, Topology
from scheduler_service.columns.view import TableView
from scheduler_service.model import Request, Selection
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.judging import Judged, stages
from scheduler_service.pipeline.standing import Standing
from scheduler_service.pipeline.weigh import FINALISTS, Ranking
from scheduler_service.pipeline.weights import Weights
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher

_KEPT = 1536
_MOST_CHANGED = 512
_AHEAD = 160
_SAID = np.zeros(0, np.bool_)


class Shortlist:
    """The best hosts for requests of one shape.

    :ivar amounts: what each request takes, by resource class
    :ivar selections: row -> what is answered for its host
    :ivar query: what the request filters ask of hosts, once it is known
    :param judged: every filter's say on the table
    :raises Unfit: a weigher cannot be followed row by row
    """

    def __init__(
        self,
        table: HostTable,
        request: Request,
        settings: Settings,
        judged: Sequence[Judged],
        weighers: Sequence[Weigher],
    ) -> None:
        self.amounts = request.resources
        self.selections: dict[int, Selection] = {}
        self.query: str | None = None
        self._topology: Topology = table.topology
        self._epoch = table.topology.epoch
        self._at = len(table.topology.journal)
        self._settings = settings
        self._stage = stages(table, judged)
        # What moves is asked again, of few rows: its mask can go.
        self._judged = [
            dataclasses.replace(one, mask=_SAID) if one.moves else one
            for one in judged
        ]
        counts = np.bincount(self._stage, minlength=len(judged) + 1)
        self._counts: list[int] = counts.tolist()
        self._passes = len(judged)
        self._weights = Weights(table, request, settings, weighers)
        self._grown = False
        # Row -> (stage, raw weights) once it has taken one more.
        self._after: dict[int, tuple[int, list[float]]] = {}
        # And what these add up to, under which ranges.
        self._sums: dict[int, tuple[bool, float, list[float]]] = {}
        self._sums_under: object = None
        self._under: object = None
        self._missed = 0
        self._just: int | None = None
        self._ready: Ranking | None = None
        self._rows = np.zeros(0, np.int64)
        # Of these, those that pass, and where each is among them.
        self._live: np.ndarray[Any, Any] | None = None
        self._at_of: dict[int, int] = {}
        self._funnel: Funnel | None = None
        self._kept = np.zeros(len(table), np.bool_)
        self._cut(np.flatnonzero(self._stage == self._passes))

    def ranking(
        self, table: HostTable, request: Request, best: int, ties: bool
    ) -> Ranking | None:
        """Return the ranking of the kept, or None where it is not certain.

        :param best: how many of the first have to be the best of all
        :param ties: whether every host as good as the best has to be there
        """
        self._take_in(table, request)
        if not self.follow(table, request):
            return None
        found = self._rank()
        if found is None:
            return None
        certain = found.passed == 1 or self._certain(found, best, ties)
        return found if certain else None

    def catch_up(
        self, table: HostTable, request: Request, ahead: bool
    ) -> None:
        """Rank now what nobody waits for yet.

        :param ahead: whether many will be taken, so that it is worth knowing
            what that makes of them
        """
        self._take_in(table, request)
        if not self.follow(table, request):
            return
        found = self._rank()
        if found is None:
            return
        if not ahead:
            found.best_at(FINALISTS)
            return
        best = found.best(_AHEAD)
        known = sum(row in self._after for row in best)
        if 2 * known < len(best):
            self._look_ahead(table, request)

    def _rank(self) -> Ranking | None:
        """Return the ranking of those kept that pass, None without any."""
        if self._ready is None:
            rows = self._passing()
            passing = self._counts[self._passes]
            if passing == 1 and len(rows):
                self._ready = Ranking(rows, np.zeros(1), [], passing)
            elif len(rows):
                self._ready = self._weights.rank(rows, passing)
        return self._ready

    def funnel(self, table: HostTable) -> Funnel:
        """Return how many hosts each filter left, as the pass counts them."""
        if self._funnel is not None:
            return self._funnel
        left = len(table)
        found = self._funnel = Funnel(left)
        for judged, out in zip(self._judged, self._counts, strict=False):
            if judged.told:
                found.counts.append((judged.one.name, left, left - out))
            left -= out
        return found

    def follow(self, table: HostTable, request: Request) -> bool:
        """Take in the rows that changed; whether that could be done.

        Once it could not, it never can again.
        """
        if not self.is_of(table.topology):
            return False
        journal = table.topology.journal
        since = self._at
        if since == len(journal):
            return True
        if len(journal) - since > _MOST_CHANGED or self._grown:
            return False
        self._at = len(journal)
        rows = np.array(sorted({*journal[since:]}), np.int64)
        if self._after:
            for row in rows.tolist():
                self._after.pop(row, None)
        view = TableView.of(table, rows)
        moved = self._judge_again(view, rows, request)
        new = rows[~self._kept[rows]]
        bounding = self._weights.weigh_again(view, rows, new, request)
        self._ready = None
        if moved or len(new):
            self._moved()
        elif self._live is not None:
            self._weights.gather_again(rows, self._at_of)
        if len(new):
            self._rows = np.union1d(self._rows, new)
            self._kept[new] = True
            self._grown = len(self._rows) > _KEPT * 4
        if bounding:
            # One that bounded the others is not among them any more.
            self._weights.bound(self._others())
        return True

    def is_of(self, topology: Topology) -> bool:
        """Whether it is of hosts and aggregates as they are there."""
        return topology is self._topology and topology.epoch == self._epoch

    def inherit(self, before: Shortlist) -> None:
        """Go on with what one of the same shape was answered with."""
        if before.is_of(self._topology):
            self.selections = before.selections
            self.query = before.query

    def took(self, table: HostTable, row: int) -> None:
        """Note that a request of this shape was just put on a row."""
        if len(table.topology.journal) == self._at + 1:
            self._just = row

    def _take_in(self, table: HostTable, request: Request) -> None:
        """Take in what was just put on a row, where nothing else happened.

        What becomes of a row by that is worked out for many rows at once,
        and before it is known which of them will be taken.
        """
        row, self._just = self._just, None
        if row is None or not self.is_of(table.topology):
            return
        if len(table.topology.journal) != self._at + 1:
            return
        known = self._after.get(row)
        if known is None:
            self._missed += 1
            if self._missed > 1:
                self._look_ahead(table, request)
            return
        stage, raw = known
        at = self._at_of.get(row)
        ready = self._ready
        if (
            stage == self._passes
            and at is not None
            and isinstance(ready, Standing)
            and self._foreseen(row)
        ):
            _, total, parts = self._sums[row]
            self._weights.put_foreseen(row, at, raw)
            ready.change(at, total, parts)
        else:
            self._take_in_anew(row, at, stage, raw)
        del self._after[row]
        self._at += 1

    def _foreseen(self, row: int) -> bool:
        """Whether it is sure what a row adds up to with one more.

        It is worked out for all at once, where ranges are what they were.
        """
        under, self._under = self._under, self._weights.ends
        if self._sums_under is not self._under:
            if self._under is not under:
                return False
            self._foresee()
        return self._sums[row][0]

    def _foresee(self) -> None:
        """Work out what rows add up to once they have taken one more."""
        self._sums_under = self._under
        raw = np.array([raw for _, raw in self._after.values()]).T
        rows = np.array([*self._after], np.int64)
        found = self._weights.foresee(rows, raw)
        self._sums = dict(zip(self._after, found, strict=True))

    def _take_in_anew(
        self, row: int, at: int | None, stage: int, raw: list[float]
    ) -> None:
        """Take in what was put on a row, whatever it does to the ranges."""
        total = self._weights.put(row, raw, at)
        ready, self._ready = self._ready, None
        if stage != self._passes:
            self._counts[self._passes] -= 1
            self._counts[stage] += 1
            self._stage[row] = stage
            self._moved()
        elif total is not None and isinstance(ready, Standing):
            assert at is not None
            ready.change(at, *total)
            self._ready = ready

    def _look_ahead(self, table: HostTable, request: Request) -> None:
        """Work out what taking one more would make of the best rows."""
        self._missed = 0
        if not self.follow(table, request):
            return
        ranking = self._rank()
        if ranking is None or len(ranking.rows) < 2:
            return
        best = ranking.best(_AHEAD)
        # No others: of all rows and many shapes it would be too much to keep.
        self._after = {
            row: self._after[row] for row in best if row in self._after
        }
        ahead = np.array(
            sorted(row for row in best if row not in self._after), np.int64
        )
        if not len(ahead):
            return
        view = TableView.taken(table, ahead, self.amounts)
        found = self._judge(view, ahead, request).tolist()
        raw = self._weights.look(view, ahead, request).T.tolist()
        self._after.update(
            zip(ahead.tolist(), zip(found, raw, strict=True), strict=True)
        )
        self._sums_under = None

    def _passing(self) -> np.ndarray[Any, Any]:
        """Return the rows kept that pass, with their weights at hand."""
        if self._live is None:
            there = self._stage[self._rows] == self._passes
            self._live = self._rows[there]
            self._at_of = {
                row: at for at, row in enumerate(self._live.tolist())
            }
            self._weights.gather(self._live)
        return self._live

    def _moved(self) -> None:
        """Note that others pass by now, or weigh something else."""
        self._live = None
        self._at_of = {}
        self._funnel = None
        self._ready = None

    def _judge_again(
        self, view: TableView, rows: np.ndarray[Any, Any], request: Request
    ) -> bool:
        """Judge rows that changed; whether any is judged otherwise now."""
        stage = self._judge(view, rows, request)
        before = self._stage[rows]
        if (stage == before).all():
            return False
        for old in before.tolist():
            self._counts[old] -= 1
        for new in stage.tolist():
            self._counts[new] += 1
        self._stage[rows] = stage
        return True

    def _judge(
        self, view: TableView, rows: np.ndarray[Any, Any], request: Request
    ) -> np.ndarray[Any, Any]:
        """Return int16[m]: the first filter that keeps each row out."""
        stage = np.full(len(rows), self._passes, np.int16)
        for at in range(self._passes - 1, -1, -1):
            judged = self._judged[at]
            if judged.mask is None:
                continue
            if judged.moves:
                mask = judged.one.mask(view, request, self._settings)
                assert mask is not None
            else:
                mask = judged.mask[rows]
            stage[~mask] = at
        return stage

    def _cut(self, rows: np.ndarray[Any, Any]) -> None:
        """Keep the best of all that pass, and note the bounds of the rest."""
        totals = self._weights.start(rows)
        self._rows = rows
        self._cut_at, self._cut_row = -np.inf, -1
        if len(rows) > _KEPT:
            threshold = np.partition(totals, -_KEPT)[-_KEPT]
            above = totals > threshold
            ties = np.flatnonzero(totals == threshold)
            above[ties[: _KEPT - int(np.count_nonzero(above))]] = True
            rest = totals[~above]
            self._cut_at = float(rest.max())
            first = int((rest == self._cut_at).argmax())
            self._cut_row = int(rows[~above][first])
            self._rows = rows[above]
        self._kept[self._rows] = True
        self._weights.bound(self._others())

    def _others(self) -> np.ndarray[Any, Any]:
        """Return the rows that pass and are not kept."""
        found: np.ndarray[Any, Any] = np.flatnonzero(
            (self._stage == self._passes) & ~self._kept
        )
        return found

    def _certain(self, found: Ranking, best: int, ties: bool) -> bool:
        """Whether no host that is not kept can be among the best."""
        if self._cut_row < 0:
            return True
        order = found.best_at(best)
        if len(order) < best:
            return False
        drift = self._weights.drift()
        limit = self._cut_at + drift
        if drift:
            limit += 1e-9 * (1.0 + abs(limit))
        total = found.totals[order[-1]]
        if total > limit:
            return True
        if drift or ties or total < limit:
            return False
        # As good as the best of the others: the first in the table's order.
        tied = [at for at in order if found.totals[at] == total]
        return all(found.rows[at] < self._cut_row for at in tied)
