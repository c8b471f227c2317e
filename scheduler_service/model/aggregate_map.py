"""All aggregates, and memoized lookups in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from scheduler_service.model.inventory import Aggregate

T = TypeVar('T')
# How many results of lookups are kept; the oldest are dropped.
_MOST_KEPT = 512
# Results under longer keys, in characters, are not kept: a request may name
# any number of aggregates.
_LONGEST_KEPT = 4096


class SharedUuids(frozenset[str]):
    """Uuids of aggregates that are kept once, for all requests.

    In a key they take no memory of their own, so their text is short: keys
    are weighed by their texts.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f'<{len(self)} uuids>'


class AggregateMap(dict[int, Aggregate]):
    """Aggregates by id, which do not change.

    Any thread may read it. Two threads that miss a key at once both compute
    the result.
    """

    __slots__ = ('_memo',)

    def __init__(self, aggregates: Any = ()) -> None:
        super().__init__(aggregates)
        self._memo: dict[Hashable, Any] = {}

    def memoize(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the result of *work*, which is kept under *key*."""
        try:
            value: T = self._memo[key]
            return value
        except KeyError:
            pass
        value = work()
        if len(repr(key)) > _LONGEST_KEPT:
            return value
        while len(self._memo) >= _MOST_KEPT:
            self._memo.pop(next(iter(self._memo), None), None)
        self._memo[key] = value
        return value
