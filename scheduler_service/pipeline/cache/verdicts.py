"""Which filter rejects each host, kept between requests that ask the same.

Requests whose filters say the same about every host share one
:class:`Verdicts`. It is brought up to date where the load of hosts changed,
and there alone. It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.pipeline.filtering import COMPARISONS, MASK, Step

Indexes = np.ndarray[Any, np.dtype[np.uint8]]
# Verdicts are dropped, the least recently used first, beyond so many and so
# many bytes.
_MOST_KEPT = 4096
_MOST_BYTES = 96 * 2**20


class Verdicts:
    """The first step of a plan that rejects each host.

    Steps that name a few hosts for one request are not part of it.

    :param by_masks: uint8[n], the same for the steps that do not follow the
        load of hosts; not to be written to
    :ivar first: uint8[n], index of the step; the number of steps where a
        host passes all of them
    :ivar passing: the number of steps
    :ivar counts: hosts by value of ``first``
    """

    __slots__ = (
        '_by_masks',
        '_comparisons',
        '_position',
        '_steps',
        'counts',
        'first',
        'passing',
    )

    def __init__(
        self, table: HostTable, steps: Sequence[Step], by_masks: Indexes
    ) -> None:
        self.passing = len(steps)
        # The arrays of a key have to stay as long as what is kept under it:
        # another array would get the identity of one that went.
        self._steps = steps
        self._by_masks = by_masks
        # The last step first, so that earlier ones overwrite it.
        self._comparisons = [
            (index, comparison)
            for index, (_, form, verdict, _) in enumerate(steps)
            if form == COMPARISONS
            for comparison in verdict or ()
        ][::-1]
        self.first = by_masks
        self.counts: list[int] = []
        self._position = 0
        self._judge_all(table)

    def refresh(self, table: HostTable) -> None:
        """Judge the hosts again whose load changed."""
        changes = table.load.changes
        if changes.end == self._position:
            return
        rows = changes.since(self._position)
        if rows is None or len(rows) > len(table) // 4 + 1:
            self._judge_all(table)
            return
        self._position = changes.end
        before = self.first.take(rows)
        after = self._judged(rows)
        changed = before != after
        if not changed.any():
            return
        self.first[rows] = after
        counts = self.counts
        # A row that changed several times counts once.
        old_and_new = zip(
            before[changed].tolist(), after[changed].tolist(), strict=True
        )
        for old, new in dict(
            zip(rows[changed].tolist(), old_and_new, strict=True)
        ).values():
            counts[old] -= 1
            counts[new] += 1

    def _judge_all(self, table: HostTable) -> None:
        self._position = table.load.changes.end
        self.first = self._by_masks.copy()
        for index, (column, operator, value) in self._comparisons:
            fails = ~operator(column, value)
            fails &= self.first > index
            self.first[fails] = index
        counts = np.bincount(self.first, minlength=self.passing + 1)
        self.counts = counts.tolist()

    def _judged(self, rows: Rows) -> Indexes:
        """Return what ``first`` is for some rows now."""
        first = np.full(len(rows), self.passing, np.uint8)
        for index, comparison in self._comparisons:
            first[~comparison.at(rows)] = index
        return np.minimum(first, self._by_masks.take(rows))


class VerdictCache:
    """Verdicts by what they are made of, for one table."""

    def __init__(self) -> None:
        self._kept: dict[Any, Verdicts] = {}
        # By what masks, in their places: and the masks themselves, so that
        # no other array gets the identity of one of them.
        self._by_masks: dict[Any, tuple[Indexes, list[Any]]] = {}

    def get(self, table: HostTable, steps: Sequence[Step]) -> Verdicts:
        """Return the verdicts of a plan's steps, up to date."""
        key = tuple([_identity(form, v) for _, form, v, _ in steps])
        verdicts = self._kept.pop(key, None)
        if verdicts is None:
            by_masks = self._first_by_masks(len(table), steps)
            verdicts = Verdicts(table, steps, by_masks)
            _make_room(self._kept, len(table))
        else:
            verdicts.refresh(table)
        self._kept[key] = verdicts
        return verdicts

    def _first_by_masks(self, hosts: int, steps: Sequence[Step]) -> Indexes:
        """Return the first step with a mask that rejects each host."""
        masks = [
            (index, verdict)
            for index, (_, form, verdict, _) in enumerate(steps)
            if form == MASK and verdict is not None
        ]
        key = len(steps), *((index, id(mask)) for index, mask in masks)
        kept = self._by_masks.get(key)
        if kept is None:
            first = np.full(hosts, len(steps), np.uint8)
            for index, mask in reversed(masks):
                first[~mask] = index
            _make_room(self._by_masks, hosts)
            kept = self._by_masks[key] = first, masks
        return kept[0]


def _make_room(kept: dict[Any, Any], hosts: int) -> None:
    """Drop what was used the longest time ago."""
    most = min(_MOST_KEPT, max(16, _MOST_BYTES // max(hosts, 1)))
    while len(kept) >= most:
        del kept[next(iter(kept))]


def _identity(form: int, verdict: Any) -> Any:
    """Return what tells a step's verdict apart from others."""
    if verdict is None or form not in (MASK, COMPARISONS):
        return None
    if form == MASK:
        return id(verdict)
    return tuple(
        [
            (
                id(column),
                operator,
                id(value) if isinstance(value, np.ndarray) else value,
            )
            for column, operator, value in verdict
        ]
    )
