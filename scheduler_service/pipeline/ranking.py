"""Hosts that passed, with their weights: the best of them, and the choice.

A ranking belongs to the thread that made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings

# How many of the best an explanation names.
FINALISTS = 5
# Up to so many of the best are searched in turn, more by sorting.
_FEW = 16
# From so many hosts on, they are searched in blocks.
_LARGE = 50_000
_BLOCK = 256


@dataclasses.dataclass(slots=True)
class Ranking:
    """Hosts that passed the filters, and their weights.

    :ivar rows: int64[m], rows of the table, ascending
    :ivar totals: float64[m], sums of multiplier x normalised weight; minus
        infinity for hosts that did not pass
    :ivar parts: (weigher, float64[m]) of weighers with an opinion
    :ivar count: how many hosts passed
    :ivar ranges: the ends of the raw weights, by weigher
    """

    rows: Rows
    totals: Floats
    parts: list[tuple[str, Floats]]
    count: int
    ranges: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    _order: list[int] = dataclasses.field(default_factory=list)

    def best(self, count: int) -> list[int]:
        """Return the *count* best rows, best first; ties in row order."""
        best: list[int] = self.rows.take(self.best_at(count)).tolist()
        return best

    def pick(
        self, settings: Settings, rng: RandomSource, spread: int = 1
    ) -> int:
        """Return the row to take: the best, or one of the best at random.

        :param spread: pick among at least so many of the best
        """
        among = max(settings.host_subset_size, spread)
        if among == 1 and not settings.shuffle_best_same_weighed_hosts:
            return self.rows.item(self.best_at(1)[0])
        if settings.shuffle_best_same_weighed_hosts:
            ties = np.flatnonzero(self.totals == self.totals.max())
            order = [int(self.rows[at]) for at in ties]
            rng.shuffle(order)
            if among > len(order):
                rest = [row for row in self.best(among) if row not in order]
                order += rest
        else:
            order = self.best(among)
        return rng.choice(order[:among])

    def finalists(self, table: HostTable) -> dict[str, Any]:
        """Return the best hosts, best first, and their weights by column."""
        best = self.best_at(FINALISTS)
        rows = self.rows.take(best)
        return {
            'host': table.coded['host'].values_at(rows),
            'node': table.coded['node'].values_at(rows),
            'weight': self.totals.take(best).tolist(),
            'weights': {
                name: part.take(best).tolist() for name, part in self.parts
            },
        }

    def best_at(self, count: int) -> list[int]:
        """Return where the *count* best are in the arrays, best first."""
        count = min(count, self.count)
        if count > len(self._order):
            most = min(FINALISTS, self.count)
            self._order = best_of(self.totals, max(count, most))
        return self._order[:count]


def best_of(totals: Floats, count: int) -> list[int]:
    """Return the indexes of the *count* largest, largest first.

    Ties are broken by index, lowest first.
    """
    if len(totals) >= _LARGE and count < len(totals) // _BLOCK:
        return _best_of_blocks(totals, count)
    if count > _FEW:
        order = np.argsort(-totals, kind='stable')
        return [int(at) for at in order[:count]]
    left = totals
    best: list[int] = []
    for turn in range(count):
        at = int(left.argmax())
        best.append(at)
        if turn + 1 < count:
            left = left.copy() if turn == 0 else left
            left[at] = -np.inf
    return best


def _best_of_blocks(totals: Floats, count: int) -> list[int]:
    """Search the largest through the maxima of blocks."""
    maxima = np.maximum.reduceat(totals, np.arange(0, len(totals), _BLOCK))
    blocks: dict[int, Floats] = {}
    best: list[int] = []
    for _ in range(count):
        block = int(maxima.argmax())
        if block not in blocks:
            start = block * _BLOCK
            blocks[block] = totals[start : start + _BLOCK].copy()
        values = blocks[block]
        at = int(values.argmax())
        best.append(block * _BLOCK + at)
        values[at] = -np.inf
        maxima[block] = values.max()
    return best


T = TypeVar('T')


class RandomSource(Protocol):
    """The part of ``random.Random`` that the pipeline uses."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to *stop* - 1."""

    def choice(self, items: Sequence[T], /) -> T:
        """Return one of the items."""

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Put the items into another order, in place."""
