"""Columns that follow the load of hosts: what is free, what is available.

Filters compare these columns and weighers rank by them. They are worked out
once for a table; after that, every change of a host's use updates that
host's values alone. The thread that owns the table writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import Rows

T = TypeVar('T')
# A row, int64[m] rows, or slice(None) for all of them.
Index = Any
Formula = Callable[[Index], Any]
Column = npt.NDArray[Any]


class LoadColumns:
    """The load columns of one table, each made at its first use.

    A column is registered under each source that it is made of: a resource
    class, or the name of a plain column.

    :ivar changes: rows that changed, whichever column
    """

    __slots__ = ('_by_key', '_by_source', '_memo', 'changes')

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop every column; each is made again at its next use."""
        self._by_key: dict[Hashable, Column] = {}
        self._by_source: dict[str, list[tuple[Column, Formula]]] = {}
        self._memo: dict[Hashable, Any] = {}
        self.changes = ChangeLog()

    def memoize(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the memoized result of *work*; it may hold load columns."""
        try:
            value: T = self._memo[key]
        except KeyError:
            value = self._memo[key] = work()
        return value

    def get(
        self,
        key: Hashable,
        sources: Iterable[str],
        make: Callable[[], Formula],
    ) -> Column:
        """Return the column under *key*, [n], kept up to date.

        :param sources: the resource classes or plain columns that the values
            follow, or ``instances``
        :param make: returns the formula, which gives the values of a row or
            of several; it is called once for a key
        """
        column = self._by_key.get(key)
        if column is None:
            formula = make()
            column = np.array(formula(slice(None)))
            self._by_key[key] = column
            for source in sources:
                self._by_source.setdefault(source, []).append(
                    (column, formula)
                )
        return column

    def follows(self, source: str) -> bool:
        """Return whether there is a column that follows *source*."""
        return source in self._by_source

    def refresh(self, source: str, rows: Index) -> None:
        """Update every column that follows *source*, at some rows.

        A formula with floats alone is several times as fast for one row as
        a formula that mixes them with integers.
        """
        for column, formula in self._by_source.get(source, ()):
            column[rows] = formula(rows)


# How many changes are kept; a reader further behind looks at every host.
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

        A row is repeated for each of its changes. None: the changes are not
        kept any more. The array is read-only.
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
