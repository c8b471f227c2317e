"""Columns that follow the load of hosts: what is free, what is available.

Filters compare these columns and weighers rank by them. They are worked out
once for a table; after that, every change of a host's use updates that
host's values alone. The thread that owns the table writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler_service.columns.changes import ChangeLog

# A row, int64[m] rows, or slice(None) for all of them.
Index = Any
Formula = Callable[[Index], Any]
Column = npt.NDArray[Any]


class LoadColumns:
    """The load columns of one table, each made when first asked for.

    A column is registered under the source that it is made of: a resource
    class, or the name of a plain column.

    :ivar changes: rows that changed, whichever column
    """

    __slots__ = ('_by_key', '_by_source', '_memo', 'changes')

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop every column; each is made anew when it is asked for."""
        self._by_key: dict[Hashable, Column] = {}
        self._by_source: dict[str, list[tuple[Column, Formula]]] = {}
        self._memo: dict[Hashable, Any] = {}
        self.changes = ChangeLog()

    def memoize(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return what *work* first returned, which may hold load columns."""
        try:
            return self._memo[key]
        except KeyError:
            value = self._memo[key] = work()
            return value

    def get(
        self, key: Hashable, source: str, make: Callable[[], Formula]
    ) -> Column:
        """Return the column under *key*, [n], kept up to date.

        :param source: the resource class or plain column that it follows,
            or ``instances``
        :param make: returns the formula, which gives the values of a row or
            of several; it is called once for a key
        """
        column = self._by_key.get(key)
        if column is None:
            formula = make()
            column = np.array(formula(slice(None)))
            self._by_key[key] = column
            self._by_source.setdefault(source, []).append((column, formula))
        return column

    def follows(self, source: str) -> bool:
        """Say whether there is a column that follows *source*."""
        return source in self._by_source

    def refresh(self, source: str, rows: Index) -> None:
        """Update every column that follows *source*, at some rows.

        A formula with floats alone is several times as fast for one row as
        one that mixes them with integers.
        """
        for column, formula in self._by_source.get(source, ()):
            column[rows] = formula(rows)
