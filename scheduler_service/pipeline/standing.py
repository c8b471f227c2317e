"""A ranking that is kept true as one host after another changes.

As long as the range of every weigher stays what it is, one host's change
moves that host alone. Its total is worked out anew, and of all the others
only the order of the best is kept.
"""

from __future__ import annotations

import bisect
import dataclasses

import msgspec
import numpy as np

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.pipeline.weigh import FINALISTS, Ranking

_TOP = 320
# For how many hosts parts wait to be written into the matrix together.
_LATE = 256


@dataclasses.dataclass(slots=True)
class Standing(Ranking):
    """Totals of hosts, finite, under ranges that stay.

    :ivar matrix: float64[k, m], what each weigher adds, but for ``_parts``
    :ivar named: which of them had an opinion, and its name
    """

    matrix: Floats = dataclasses.field(default_factory=lambda: np.zeros(0))
    named: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    # (-total, at) of the best, in order: whoever is not there comes after.
    _top: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    _best: list[int] = dataclasses.field(default_factory=list)
    # What the matrix does not have yet.
    _parts: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    _told: dict[int, msgspec.Raw] = dataclasses.field(default_factory=dict)

    def change(self, at: int, total: float, parts: list[float]) -> None:
        """Take in a host's total, and what each weigher adds to it by now."""
        old = -self.totals.item(at), at
        self.totals[at] = total
        if len(self._parts) >= _LATE:
            self._write()
        self._parts[at] = parts
        self._told.pop(at, None)
        self._order, self._best = [], []
        top = self._top
        if top:
            last = top[-1]
            if old <= last:
                del top[bisect.bisect_left(top, old)]
            new = -total, at
            if new < last:
                bisect.insort(top, new)

    def _write(self) -> None:
        """Let the matrix have all parts."""
        self.matrix[:, [*self._parts]] = np.array([*self._parts.values()]).T
        self._parts.clear()

    def best(self, count: int) -> list[int]:
        """Return the *count* best rows, best first; ties in row order."""
        if count > len(self._best):
            first = self.best_at(max(count, FINALISTS))
            self._best = [self.rows.item(at) for at in first]
        return self._best[:count]

    def best_at(self, count: int) -> list[int]:
        """Return where the *count* best are in the arrays, best first."""
        count = min(count, len(self.totals))
        if count > len(self._order):
            if count > len(self._top):
                self._top = _best(self.totals, max(count, _TOP))
            first = self._top[: max(count, FINALISTS)]
            self._order = [at for _, at in first]
        return self._order[:count]

    def _finalists(
        self, table: HostTable, best: list[int]
    ) -> list[msgspec.Raw]:
        told = self._told
        for at in best:
            if at not in told:
                told[at] = self._tell(table, at)
        return [told[at] for at in best]

    def _weights_at(self, at: int) -> dict[str, float]:
        found = self._parts.get(at) or self.matrix[:, at].tolist()
        return {name: found[k] for k, name in self.named}


def _best(totals: Floats, count: int) -> list[tuple[float, int]]:
    """Return (-total, at) of the *count* best in order, or of all."""
    keys = -totals
    if count < len(keys):
        limit = np.partition(keys, count - 1)[count - 1]
        among = np.flatnonzero(keys <= limit)
        found = zip(keys[among].tolist(), among.tolist(), strict=True)
        return sorted(found)[:count]
    return sorted(zip(keys.tolist(), range(len(keys)), strict=True))
