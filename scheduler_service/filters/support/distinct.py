"""A predicate on several columns, run once per distinct combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scheduler_service.columns.dictionary import DictionaryColumn, Mask


def mask_of_combinations(
    columns: Sequence[DictionaryColumn], predicate: Callable[..., bool]
) -> Mask:
    """Return bool[n]: the rows whose values satisfy *predicate*.

    :param columns: at least one; they have the same rows
    :param predicate: takes one value of each column, in order
    """
    codes = np.stack([column.codes for column in columns])
    combinations, inverse = np.unique(codes, axis=1, return_inverse=True)
    verdicts = np.fromiter(
        (
            predicate(
                *(
                    column.values[code]
                    for column, code in zip(columns, combination, strict=True)
                )
            )
            for combination in combinations.T
        ),
        np.bool_,
        combinations.shape[1],
    )
    mask: Mask = verdicts.take(inverse.ravel())
    return mask
