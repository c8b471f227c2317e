"""A cache that is emptied when it holds too many values, or too large ones."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar('K', bound=Hashable)
V = TypeVar('V')


class SizedCache(Generic[K, V]):
    """Values by key. It belongs to the thread that uses it.

    :param most: values
    :param most_size: of all values together, in whatever they are counted
    """

    def __init__(self, most: int, most_size: int) -> None:
        self._most = most
        self._most_size = most_size
        self._values: dict[K, V] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        """Return the value of a key; None: there is none."""
        return self._values.get(key)

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value under a key that has none."""
        if (
            len(self._values) >= self._most
            or self._size + size > self._most_size
        ):
            self._values.clear()
            self._size = 0
        self._values[key] = value
        self._size += size
