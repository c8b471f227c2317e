"""What the pipeline needs of a random generator, which is handed in.

The type is here so that no module of the pipeline imports ``random``: equal
seeds give equal choices, and only the engine makes generators.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar('T')


class RandomSource(Protocol):
    """The part of ``random.Random`` that the pipeline uses."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to *stop* - 1."""

    def choice(self, items: Sequence[T], /) -> T:
        """Return one of the items."""

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Put the items into another order, in place."""
