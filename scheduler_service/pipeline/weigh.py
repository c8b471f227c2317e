"""Weigh the hosts that passed, and pick among the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.metadata import least_number
from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher

if TYPE_CHECKING:
    from random import Random

FINALISTS = 5
_encode = msgspec.json.Encoder().encode
_FEW = 16


@dataclasses.dataclass(slots=True)
class Ranking:
    """Hosts that passed and their weights.

    :ivar rows: int64[m], rows of the table, ascending
    :ivar totals: float64[m], sums of multiplier x normalised weight
    :ivar parts: (weigher's name, float64[m]) of those that had an opinion
    :ivar passed: how many passed, where rows are but the best of them
    """

    rows: np.ndarray[Any, Any]
    totals: Floats
    parts: list[tuple[str, Floats]]
    passed: int | None = None
    _order: list[int] = dataclasses.field(default_factory=list)

    def best(self, count: int) -> list[int]:
        """Return the *count* best rows, best first; ties in row order."""
        return [self.rows.item(at) for at in self.best_at(count)]

    def pick(self, settings: Settings, rng: Random, spread: int = 1) -> int:
        """Return the row to take: the best, or one of the best at random."""
        among = max(settings.host_subset_size, spread)
        if among == 1 and not settings.shuffle_best_same_weighed_hosts:
            return self.best(1)[0]
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

    def told(self, table: HostTable) -> dict[str, Any]:
        """Return how many passed, and the finalists as JSON, each by itself.

        They have the parts of their weights.
        """
        passed = len(self.rows) if self.passed is None else self.passed
        finalists = self._finalists(table, self.best_at(FINALISTS))
        return {'passed': passed, 'finalists': finalists}

    def _finalists(
        self, table: HostTable, best: list[int]
    ) -> list[msgspec.Raw]:
        return [self._tell(table, at) for at in best]

    def _tell(self, table: HostTable, at: int) -> msgspec.Raw:
        row = int(self.rows[at])
        finalist = {
            'host': table.host_at(row),
            'node': table.node_at(row),
            'weight': self.totals.item(at),
            'weights': self._weights_at(at),
        }
        return msgspec.Raw(_encode(finalist))

    def _weights_at(self, at: int) -> dict[str, float]:
        return {name: part.item(at) for name, part in self.parts}

    def best_at(self, count: int) -> list[int]:
        """Return where the *count* best are in the arrays, best first."""
        count = min(count, len(self.totals))
        if count > len(self._order):
            most = min(FINALISTS, len(self.totals))
            self._order = self._sorted(max(count, most))
        return self._order[:count]

    def _sorted(self, count: int) -> list[int]:
        if count > _FEW:
            order = np.argsort(-self.totals, kind='stable')
            return [int(at) for at in order[:count]]
        left = self.totals
        found: list[int] = []
        for turn in range(count):
            at = int(left.argmax())
            found.append(at)
            if turn + 1 < count:
                left = left.copy() if turn == 0 else left
                left[at] = -np.inf
        return found


def rank(
    table: HostTable,
    mask: Mask,
    request: Request,
    weighers: Sequence[Weigher],
    settings: Settings,
) -> Ranking:
    """Weigh the hosts of *mask*, bool[n] with at least one true.

    Each weigher in turn: raw weights, bounded, normalised to 0..1 over
    these hosts, multiplied, added. One host alone is not weighed.

    :raises FilterFault: a weigher failed
    """
    rows = np.flatnonzero(mask)
    totals = np.zeros(len(rows))
    parts: list[tuple[str, Floats]] = []
    if len(rows) == 1:
        return Ranking(rows, totals, parts)
    index: Rows = slice(None) if len(rows) == len(table) else rows
    for weigher in weighers:
        part = weighed(weigher, table, index, request, settings)
        if part is not None:
            totals += part
            parts.append((weigher.name, part))
    return Ranking(rows, totals, parts)


def weighed(
    weigher: Weigher,
    table: HostTable,
    rows: Rows,
    request: Request,
    settings: Settings,
) -> Floats | None:
    """Return multiplier x normalised weight of *rows*, or None."""
    multiplier = multipliers(weigher, table, settings)
    if multiplier is None:
        return None
    raw = raw_weights(weigher, table, rows, request, settings)
    if raw is None:
        return None
    if not isinstance(multiplier, float):
        multiplier = multiplier[rows]
    low = raw.min() if weigher.minval is None else weigher.minval
    high = raw.max() if weigher.maxval is None else weigher.maxval
    if high == low:
        return None
    if low:
        raw = raw - low
    # In this order the best weighs exactly its multiplier.
    part: Floats = raw / (high - low) * (weigher.sign * multiplier)
    return part


def multipliers(weigher: Weigher, table: HostTable, settings: Settings) -> Any:
    """Return the multiplier, a float or float64[n]; None: not to be run."""
    key, default = weigher.multiplier_option, weigher.multiplier(settings)
    if key and table.any_aggregate_has(key):
        return _by_aggregate(table, key, default)
    if default == 0.0 and not weigher.refuses:
        return None
    return float(default)


def raw_weights(
    weigher: Weigher,
    table: HostTable,
    rows: Rows,
    request: Request,
    settings: Settings,
) -> Floats | None:
    """Return a weigher's raw weights, inside its own bounds."""
    try:
        raw = weigher.weigh(table, rows, request, settings)
    except errors.SchedulerError:
        raise
    except Exception as fault:
        raise errors.FilterFault(
            f'{weigher.name} failed: {type(fault).__name__}: {fault}',
            filter=weigher.name,
            fault=type(fault).__name__,
        ) from fault
    if raw is None or (weigher.minval is None and weigher.maxval is None):
        return raw
    if weigher.minval is not None:
        raw = np.maximum(raw, weigher.minval)
    if weigher.maxval is not None:
        raw = np.minimum(raw, weigher.maxval)
    return raw


def _by_aggregate(table: HostTable, key: str, default: float) -> Any:
    """Return a multiplier for each host, float64[n], by its aggregates."""

    def verdict(ids: frozenset[int]) -> float:
        return least_number(table.values_of(ids, key), default, float)

    return table.by_aggregates(('multiplier', key, default), verdict)
