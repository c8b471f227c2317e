"""Dictionary encoding: each distinct value once, hosts by small integers.

Columns are written while a table is built. Afterwards any thread may read
them, and none writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
Codes = npt.NDArray[np.int32]
# Up to this number of values a mask by distinct value is expanded to rows by
# comparing the codes with each; looking up each row takes longer.
_FEW = 2


class DictionaryColumn:
    """A column of hashable values, each distinct value stored once.

    A predicate runs once per distinct value and is expanded to the rows. The
    rows of :meth:`take` share the values of all rows; :meth:`concat` forgets
    those that no row has any more.

    :ivar codes: int32[n], one code per row
    :ivar values: the value that each code stands for
    """

    __slots__ = ('_index', 'codes', 'values')

    def __init__(
        self,
        codes: Codes,
        values: tuple[Any, ...],
        index: dict[Any, int] | None = None,
    ) -> None:
        self.codes = codes
        self.values = values
        self._index = index

    @classmethod
    def of(cls, items: Iterable[Hashable]) -> DictionaryColumn:
        """Encode *items* in their order."""
        index: dict[Any, int] = {}
        codes = [index.setdefault(item, len(index)) for item in items]
        return cls(np.array(codes, np.int32), tuple(index), index)

    @property
    def index(self) -> dict[Any, int]:
        """Code by value."""
        if self._index is None:
            self._index = {v: code for code, v in enumerate(self.values)}
        return self._index

    def code(self, value: Hashable) -> int:
        """Return the code of *value*, -1 where no row has it."""
        return self.index.get(value, -1)

    def mask_where(self, predicate: Callable[[Any], bool]) -> Mask:
        """Return the rows whose value satisfies *predicate*; bool[n]."""
        verdicts = np.fromiter(
            (predicate(value) for value in self.values),
            np.bool_,
            len(self.values),
        )
        return self.expand(verdicts)

    def expand(self, by_value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array by distinct value as an array by row."""
        if not len(by_value):
            return np.zeros(len(self.codes), by_value.dtype)
        if by_value.dtype == np.bool_:
            return self._expand_mask(by_value)
        return by_value.take(self.codes)

    def _expand_mask(self, verdicts: Mask) -> Mask:
        """Return a mask by distinct value as a mask by row."""
        accepted = np.flatnonzero(verdicts)
        if len(accepted) <= _FEW:
            return self._rows_with(accepted)
        if len(verdicts) - len(accepted) <= _FEW:
            mask = self._rows_with(np.flatnonzero(~verdicts))
            return np.logical_not(mask, out=mask)
        return verdicts.take(self.codes)

    def _rows_with(self, codes: Rows) -> Mask:
        if not len(codes):
            return np.zeros(len(self.codes), np.bool_)
        first, *others = codes.tolist()
        mask: Mask = self.codes == first
        for code in others:
            mask |= self.codes == code
        return mask

    def at(self, row: int) -> Any:
        """Return the value of one row."""
        return self.values[self.codes[row]]

    def values_at(self, rows: Rows | Sequence[int]) -> list[Any]:
        """Return the values of some rows."""
        codes = self.codes.take(rows).tolist()
        return list(map(self.values.__getitem__, codes))

    def take(self, rows: npt.NDArray[Any]) -> DictionaryColumn:
        """Return the column of the given rows, over the same values."""
        return DictionaryColumn(self.codes[rows], self.values, self._index)

    def concat(self, other: DictionaryColumn) -> DictionaryColumn:
        """Return this column with *other*'s rows behind it.

        Values that no row has are dropped: otherwise predicates would run on
        every value that a host ever reported, and memory would grow with every
        report.
        """
        new = [value for value in other.values if value not in self.index]
        values, index = self.values, self.index
        if new:
            values = (*values, *new)
            index = {value: code for code, value in enumerate(values)}
        codes_here = np.array(
            [index[value] for value in other.values], np.int32
        )
        tail = other.expand(codes_here)
        codes = np.concatenate([self.codes, tail]).astype(np.int32)
        return DictionaryColumn(codes, values, index)._in_use()

    def _in_use(self) -> DictionaryColumn:
        """Return this column without the values that no row has."""
        used = np.bincount(self.codes, minlength=len(self.values)) > 0
        if used.all():
            return self
        renumbered = (np.cumsum(used) - 1).astype(np.int32)
        values = tuple(itertools.compress(self.values, used.tolist()))
        return DictionaryColumn(renumbered[self.codes], values)


# Up to this number of possible combinations per row the combinations in use
# are counted; beyond that the rows are sorted.
_DENSE = 8
_Ints = np.ndarray[Any, Any]


def combinations(
    columns: Sequence[DictionaryColumn],
) -> tuple[list[_Ints], _Ints]:
    """Return the combinations of values that rows have.

    :return: for each column its codes in the combinations; and the number of
        each row's combination
    """
    first, *others = columns
    used, combination = _renumber(first.codes, len(first.values))
    codes = [used]
    for column in others:
        width = len(column.values)
        used, combination = _renumber(
            combination.astype(np.int64) * width + column.codes,
            len(used) * width,
        )
        codes = [of_column[used // width] for of_column in codes]
        codes.append(used % width)
    return codes, combination


def _renumber(numbers: _Ints, bound: int) -> tuple[_Ints, _Ints]:
    """Return the numbers in use, ascending, and the place of each in them.

    :param numbers: from 0 up to, but not including, *bound*
    """
    if bound > _DENSE * len(numbers):
        return np.unique(numbers, return_inverse=True)
    used = np.flatnonzero(np.bincount(numbers, minlength=bound))
    places = np.zeros(bound, np.intp)
    places[used] = np.arange(len(used))
    return used, places.take(numbers)
