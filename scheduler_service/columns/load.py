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

# A row, int64[m] rows, or slice(None) for all of them.
Index = Any
Formula = Callable[[Index], Any]


class LoadColumn:
    """One column and the formula that keeps it true.

    :ivar values: [n]
    :param formula: gives the values of a row or of several rows
    """

    __slots__ = ('formula', 'values')

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.values: npt.NDArray[Any] = np.array(formula(slice(None)))

    def refresh(self, rows: Index) -> None:
        """Work out the values of some rows anew."""
        self.values[rows] = self.formula(rows)


class LoadColumns:
    """The load columns of one table, each made when first asked for.

    A column is registered under the sources that it is made of: resource
    classes, or names of plain columns.
    """

    __slots__ = ('_by_key', '_by_source', '_memo')

    def __init__(self) -> None:
        self._by_key: dict[Hashable, LoadColumn] = {}
        self._by_source: dict[str, list[LoadColumn]] = {}
        self._memo: dict[Hashable, Any] = {}

    def memoize(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return what *work* first returned, which may hold load columns."""
        try:
            return self._memo[key]
        except KeyError:
            value = self._memo[key] = work()
            return value

    def get(
        self, key: Hashable, source: str, make: Callable[[], Formula]
    ) -> npt.NDArray[Any]:
        """Return the column under *key*, kept up to date.

        :param source: the resource class or plain column that it follows
        :param make: returns the formula, called once for a key
        """
        column = self._by_key.get(key)
        if column is None:
            column = self._by_key[key] = LoadColumn(make())
            self._by_source.setdefault(source, []).append(column)
        return column.values

    def refresh(self, source: str, rows: Index) -> None:
        """Update every column that follows *source*, at some rows."""
        for column in self._by_source.get(source, ()):
            column.values[rows] = column.formula(rows)

    def clear(self) -> None:
        """Drop every column; each is made anew when it is asked for."""
        self._by_key.clear()
        self._by_source.clear()
        self._memo.clear()
