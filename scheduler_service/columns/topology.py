"""What moves rarely about hosts, and results that depend on nothing else.

A topology belongs to the thread that owns the table it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.model import Aggregate

# Masks are dropped, the oldest first, beyond so many and so many bytes.
_MASKS = 16_384
_MASK_BYTES = 64 * 2**20
_LOGGED = 100_000


class Topology:
    """Aggregates, memoized results, and a log of rows whose load changed.

    A change of hosts or aggregates makes a new topology, which starts with
    nothing memoized.

    :ivar aggregates: by id
    :ivar change_log: rows whose load changed, in order; emptied when it is
        full, which starts a new ``epoch``
    """

    __slots__ = (
        '_mask_bytes',
        '_masks',
        '_memo',
        'aggregates',
        'change_log',
        'epoch',
    )

    def __init__(self, aggregates: Mapping[int, Aggregate]) -> None:
        self.aggregates = aggregates
        self.change_log: list[int] = []
        self.epoch = 0
        self._memo: dict[Hashable, Any] = {}
        self._masks: dict[Hashable, Mask | None] = {}
        self._mask_bytes = 0

    def mark_changed(self, rows: Iterable[int]) -> None:
        """Log that the load of some rows changed."""
        self.change_log.extend(rows)
        if len(self.change_log) > _LOGGED:
            self.change_log = []
            self.epoch += 1

    def memoize(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return what *work* returned when first asked for *key*.

        For what options and hosts make finite: it is never dropped.
        """
        try:
            return self._memo[key]
        except KeyError:
            value = self._memo[key] = work()
            return value

    def forget(self, key: Hashable) -> None:
        """Drop what is memoized under *key*."""
        self._memo.pop(key, None)

    def mask(
        self, key: Hashable, work: Callable[[], Mask | None]
    ) -> Mask | None:
        """Return the mask under *key*; None where every host passes.

        For masks that requests ask for: the oldest are dropped.
        """
        try:
            return self._masks[key]
        except KeyError:
            pass
        mask = work()
        if mask is not None and mask.all():
            mask = None
        self._masks[key] = mask
        self._mask_bytes += 0 if mask is None else mask.nbytes
        while len(self._masks) > 1 and (
            len(self._masks) > _MASKS or self._mask_bytes > _MASK_BYTES
        ):
            dropped = self._masks.pop(next(iter(self._masks)))
            self._mask_bytes -= 0 if dropped is None else dropped.nbytes
        return mask

    def clear_masks(self) -> None:
        """Drop every mask, as a benchmark of first requests needs it."""
        self._masks.clear()
        self._mask_bytes = 0
