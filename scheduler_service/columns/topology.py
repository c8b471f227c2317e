"""Aggregates, and results that do not depend on the load of hosts.

A topology belongs to the thread that owns the table it is part of.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

from scheduler_service.columns.dictionary import Mask
from scheduler_service.model.inventory import AggregateMap
from scheduler_service.model.limits import MAX_NUMBER

T = TypeVar('T')
# Limits of the cache, as a number of arrays and in bytes with their keys: the
# oldest are dropped.
_MOST_KEPT = 16_384
_MOST_BYTES = 64 * 2**20
# Estimated size of a key, in bytes per character of its text: sets need most.
_BYTES_A_CHARACTER = 6


class Topology:
    """Aggregates, and memoized results.

    A change of hosts or aggregates makes a new topology with an empty memo.

    :ivar aggregates: by id
    """

    __slots__ = ('_array_bytes', '_arrays', '_memo', 'aggregates')

    def __init__(self, aggregates: AggregateMap) -> None:
        self.aggregates = aggregates
        self._memo: dict[Hashable, Any] = {}
        # Arrays with the number of bytes that they count.
        self._arrays: dict[Hashable, tuple[Any, int]] = {}
        self._array_bytes = 0

    def memoize(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the memoized result of *work* under *key*.

        Unbounded cache: only for keys derived from options and hosts.
        """
        try:
            value: T = self._memo[key]
        except KeyError:
            value = self._memo[key] = work()
        return value

    def forget(self, key: Hashable) -> None:
        """Drop the memoized result under *key*."""
        self._memo.pop(key, None)

    def mask(
        self, key: Hashable, work: Callable[[], Mask | None]
    ) -> Mask | None:
        """Return the mask under *key*; None where every host passes."""

        def partial_mask() -> Mask | None:
            mask = work()
            return None if mask is None or mask.all() else mask

        return self.keep(key, partial_mask)

    def keep(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the kept array (or None) of *work* under *key*.

        Bounded cache, for keys derived from requests: the oldest go.
        """
        try:
            array: T = self._arrays[key][0]
            return array
        except KeyError:
            pass
        array = work()
        # A key is of any length: that of a zone or of extra specs.
        size = len(repr(key)) * _BYTES_A_CHARACTER
        size += getattr(array, 'nbytes', 0)
        self._arrays[key] = array, size
        self._array_bytes += size
        while len(self._arrays) > 1 and (
            len(self._arrays) > _MOST_KEPT or self._array_bytes > _MOST_BYTES
        ):
            _, freed = self._arrays.pop(next(iter(self._arrays)))
            self._array_bytes -= freed
        return array

    def clear(self) -> None:
        """Drop all that is memoized and kept: options changed."""
        self._memo.clear()
        self.clear_arrays()

    def clear_arrays(self) -> None:
        """Drop all arrays, as a benchmark of first requests needs it."""
        self._arrays.clear()
        self._array_bytes = 0


class _EachTime(enum.Enum):
    EACH_TIME = 'each time'


#: The default: the plug-in runs for every request.
EACH_TIME: Final = _EachTime.EACH_TIME
Key = Hashable


def least_number(
    values: Iterable[str], default: float, cast: type[float] | type[int]
) -> float:
    """Return the least of some metadata values as a number.

    The default where any value is not a number. A number too large to
    calculate with counts as the largest allowed.
    """
    try:
        numbers = [cast(value) for value in values]
    except ValueError:
        return default
    # NaN alone differs from itself.
    if not numbers or any(number != number for number in numbers):
        return default
    return max(min(*numbers, cast(MAX_NUMBER)), cast(-MAX_NUMBER))
