"""Which hosts' load changed, in the order of the changes.

Written by the thread that owns the table, through its load columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Rows

# Changes that are kept; whoever looks later has to look at every host.
_KEPT = 1 << 16


class ChangeLog:
    """Rows that changed, each at a position that counts up from 0.

    :ivar end: position of the next change
    """

    __slots__ = ('_first', '_rows', 'end')

    def __init__(self) -> None:
        self._rows = np.empty(_KEPT, np.intp)
        self._first = 0
        self.end = 0

    def add(self, rows: Any) -> None:
        """Append a row, or int64[m] rows."""
        if not isinstance(rows, int):
            self._extend(rows)
            return
        at = self.end - self._first
        if at == _KEPT:
            at = self._forget_half()
        self._rows[at] = rows
        self.end += 1

    def _extend(self, rows: Any) -> None:
        if len(rows) > _KEPT // 2:
            self.end += len(rows)
            self._first = self.end
            return
        at = self.end - self._first
        if at + len(rows) > _KEPT:
            at = self._forget_half()
        self._rows[at : at + len(rows)] = rows
        self.end += len(rows)

    def since(self, position: int) -> Rows | None:
        """Return the rows changed from *position* on, int64[m].

        A row is repeated for each of its changes. None where the changes
        are not kept any more. Not to be written to.
        """
        if position < self._first:
            return None
        return self._rows[position - self._first : self.end - self._first]

    def _forget_half(self) -> int:
        """Drop the older half; return where to write next."""
        held = self.end - self._first
        dropped = min(_KEPT // 2, held)
        self._rows[: held - dropped] = self._rows[dropped:held].copy()
        self._first += dropped
        return held - dropped
