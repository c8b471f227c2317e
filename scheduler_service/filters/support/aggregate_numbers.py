"""Numbers that aggregates set for their hosts in their metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.metadata import least_number
from scheduler_service.columns.table import HostTable


def limit_by_aggregate(
    table: HostTable, key: str, default: float, cast: type[float] | type[int]
) -> Any:
    """Return the limit of each host, [n], or one number for all hosts.

    A host's limit is the least of the values that its aggregates have under
    *key*. The default counts where they have none, and where one of them is
    not a number.
    """
    if not table.any_aggregate_has(key):
        return default

    def limit_of(aggregate_ids: frozenset[int]) -> float:
        values = table.values_of(aggregate_ids, key)
        return least_number(values, default, cast)

    return table.topology.memoize(
        ('limit', key, default), lambda: table.by_aggregates(limit_of)
    )


def ratio_by_aggregate(table: HostTable, key: str) -> Floats | None:
    """Return the ratio that aggregates set for each host, float64[n].

    -inf where they set none, or where one of several is not a number; None
    where no aggregate at all has the key.
    """
    if not table.any_aggregate_has(key):
        return None

    def ratio_of(aggregate_ids: frozenset[int]) -> float:
        values = table.values_of(aggregate_ids, key)
        return least_number(values, -np.inf, float)

    ratios: Floats = table.topology.memoize(
        ('ratio', key), lambda: table.by_aggregates(ratio_of)
    )
    return ratios
