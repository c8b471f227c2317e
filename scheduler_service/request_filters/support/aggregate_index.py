"""Aggregates by what request filters look for, worked out once for all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from scheduler_service.model import Aggregate
from scheduler_service.model.aggregate_map import AggregateMap, SharedUuids

_NONE: frozenset[str] = frozenset()
Keys = Callable[[Aggregate], Iterable[Any]]


def uuids_by(
    aggregates: AggregateMap, name: str, keys: Keys
) -> dict[Any, frozenset[str]]:
    """Return uuids of aggregates by their keys.

    :param name: of the index
    :param keys: returns the keys under which an aggregate is found
    """

    def work() -> dict[Any, frozenset[str]]:
        found: dict[Any, set[str]] = {}
        for aggregate in aggregates.values():
            for key in keys(aggregate):
                found.setdefault(key, set()).add(aggregate.uuid)
        return {key: SharedUuids(uuids) for key, uuids in found.items()}

    index: dict[Any, frozenset[str]] = aggregates.memoize(name, work)
    return index


def uuids_of(
    aggregates: AggregateMap, name: str, keys: Keys, key: Hashable
) -> frozenset[str]:
    """Return the uuids of the aggregates with one key."""
    return uuids_by(aggregates, name, keys).get(key, _NONE)
