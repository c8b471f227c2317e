"""The result of one pass over all hosts, kept true as single hosts change.

Between two requests with the same key few hosts change. A cached ranking
keeps how far each host came through the filters, and the hosts that were
best; a change costs the rows that changed. The weights of the best are
worked out as over all hosts, to the last bit. Where it is not certain that
the best of all hosts are among those kept, there is no answer, and the
caller passes over all hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import RowSet
from scheduler_service.pipeline.cache.candidates import Candidates
from scheduler_service.pipeline.filtering import Form, Step
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.weighing import Term

# With more changed hosts than this a pass over all of them is made anew.
_MOST_CHANGED = 4096


class Ranked(NamedTuple):
    """A ranking, and how many hosts each step removed.

    :ivar ranking: None where no host passes
    """

    ranking: Ranking | None
    removed: list[int]


class CachedRanking:
    """What became of each host under some steps and terms."""

    def __init__(
        self, table: HostTable, steps: Sequence[Step], terms: Sequence[Term]
    ) -> None:
        self._topology = table.topology
        self._epoch = table.topology.epoch
        self._position = len(table.topology.change_log)
        self._terms = terms
        # (place among all steps, step) of those that are judged here.
        self._steps = [
            (at, step)
            for at, step in enumerate(steps)
            if step.form != Form.ROWS and step.verdict is not None
        ]
        self._count = len(steps)
        # The place of the first step that rejects a host; the number of
        # steps where none does.
        self._places = np.array(
            [at for at, _ in self._steps] + [self._count], np.int64
        )
        # For each host, how many of the steps here it passes in turn.
        self._stage = self._judge(slice(None), len(table))
        self._passing = len(self._steps)
        counts = np.bincount(self._stage, minlength=self._passing + 1)
        self._counts: list[int] = counts.tolist()
        rows = np.flatnonzero(self._stage == self._passing)
        self._candidates = Candidates(rows, len(table), terms)

    def _judge(self, rows: Any, count: int) -> np.ndarray[Any, Any]:
        """Return how many steps each row passes in turn, uint8[count]."""
        stage = np.zeros(count, np.uint8)
        passed = np.ones(count, np.bool_)
        for _, step in self._steps:
            if step.form == Form.MASK:
                passed &= step.verdict[rows]
            else:
                for comparison in step.verdict:
                    passed &= comparison.at(rows)
            stage += passed
        return stage

    def refresh(self, table: HostTable) -> bool:
        """Take in the rows that changed; return whether that was possible.

        If it was not, it never will be again.
        """
        topology = table.topology
        if topology is not self._topology or topology.epoch != self._epoch:
            return False
        log, start = topology.change_log, self._position
        if start == len(log):
            return True
        if len(log) - start > _MOST_CHANGED:
            return False
        self._position = len(log)
        rows = np.array(sorted(set(log[start:])), np.intp)
        before = self._stage[rows]
        after = self._judge(rows, len(rows))
        moved = np.flatnonzero(before != after)
        for at in moved.tolist():
            self._counts[before[at]] -= 1
            self._counts[after[at]] += 1
        self._stage[rows] = after
        return self._candidates.refresh(
            rows, before == self._passing, after == self._passing
        )

    def rank(
        self, row_sets: Sequence[tuple[int, RowSet]], best: int, ties: bool
    ) -> Ranked | None:
        """Return the ranking now; None where it is not certain.

        :param row_sets: (place among all steps, hosts that a filter names)
        :param best: how many of the first hosts have to be there
        :param ties: whether every host as good as the best has to be there
        """
        removed = [0] * (self._count + 1)
        for place, count in zip(
            self._places.tolist(), self._counts, strict=True
        ):
            removed[place] = count
        excluded = [(at, one.rows) for at, one in row_sets if not one.passes]
        alone = [(at, one.rows) for at, one in row_sets if one.passes]
        rows = _union([rows for _, rows in excluded])
        rejected = self._rejected_by(rows, excluded)
        for old, new in zip(
            self._place_of(rows).tolist(), rejected.tolist(), strict=True
        ):
            removed[old] -= 1
            removed[new] += 1
        if alone:
            return self._rank_alone(alone, excluded, removed)
        count = removed.pop()
        if not count:
            return Ranked(None, removed)
        out = rows[self._stage[rows] == self._passing]
        ranking = self._candidates.rank(count, out, best, ties)
        return None if ranking is None else Ranked(ranking, removed)

    def _place_of(self, rows: Rows) -> np.ndarray[Any, Any]:
        """Return the place of the step that rejects each row, int64[m]."""
        places: np.ndarray[Any, Any] = self._places[self._stage[rows]]
        return places

    def _rejected_by(
        self, rows: Rows, excluded: Sequence[tuple[int, Rows]]
    ) -> np.ndarray[Any, Any]:
        """Return the same where filters exclude some of the rows."""
        places = self._place_of(rows)
        for at, named in excluded:
            hit = np.isin(rows, named)
            places[hit] = np.minimum(places[hit], at)
        return places

    def _rank_alone(
        self,
        alone: Sequence[tuple[int, Rows]],
        excluded: Sequence[tuple[int, Rows]],
        removed: list[int],
    ) -> Ranked | None:
        """Rank where a filter lets only the hosts pass that it names."""
        if len(alone) > 1:
            return None
        ((place, rows),) = alone
        rows = np.unique(rows)
        places = self._rejected_by(rows, excluded)
        later = np.bincount(places, minlength=self._count + 1).tolist()
        for at in range(place + 1, self._count + 1):
            removed[at] = later[at]
        removed[place] = 0
        removed[place] = len(self._stage) - sum(removed)
        if not removed.pop():
            return Ranked(None, removed)
        passing = rows[places == self._count]
        return Ranked(self._candidates.rank_rows(passing), removed)


def _union(parts: Sequence[Rows]) -> Rows:
    if not parts:
        return np.empty(0, np.intp)
    return np.unique(np.concatenate(parts))
