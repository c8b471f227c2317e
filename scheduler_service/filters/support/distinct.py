"""A predicate on several columns, run once per distinct combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import DictionaryColumn, Mask

# Up to so many possible combinations for each row, those in use are found by
# counting; where there could be more, by sorting.
_DENSE = 8
_Ints = np.ndarray[Any, Any]


def mask_of_combinations(
    columns: Sequence[DictionaryColumn], predicate: Callable[..., bool]
) -> Mask:
    """Return bool[n]: the rows whose values satisfy *predicate*.

    :param columns: at least one; they have the same rows
    :param predicate: takes one value of each column, in order; it is called
        once for each combination that some row has
    """
    codes, combination = combinations(columns)
    verdicts = np.fromiter(
        (
            predicate(
                *(
                    column.values[code]
                    for column, code in zip(columns, values, strict=True)
                )
            )
            for values in zip(*(c.tolist() for c in codes), strict=True)
        ),
        np.bool_,
        len(codes[0]),
    )
    mask: Mask = verdicts.take(combination)
    return mask


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
