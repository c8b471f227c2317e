"""Limits that aggregates may set, as numbers in their metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.metadata import least_number
from scheduler_service.columns.table import HostTable


def limit_by_aggregate(
    table: HostTable, key: str, default: float, cast: type[float] | type[int]
) -> Any:
    """Return the limit of each host, [n], or one for all of them.

    The least of its aggregates' values; the default where there is none, or
    where one is no number.
    """
    if not table.any_aggregate_has(key):
        return default

    def verdict(ids: frozenset[int]) -> float:
        return least_number(table.values_of(ids, key), default, cast)

    return table.topology.memoize(
        ('limit', key, default), lambda: table.by_aggregates(verdict)
    )


def ratio_by_aggregate(table: HostTable, key: str) -> Floats | None:
    """Return the ratio that aggregates set, float64[n], -inf where none does.

    None where no aggregate has the key.
    """
    if not table.any_aggregate_has(key):
        return None

    def verdict(ids: frozenset[int]) -> float:
        return least_number(table.values_of(ids, key), -np.inf, float)

    ratios: Floats = table.topology.memoize(
        ('ratio', key), lambda: table.by_aggregates(verdict)
    )
    return ratios
