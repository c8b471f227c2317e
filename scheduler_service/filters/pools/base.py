"""What a pool filter is: an ordered fold over the pools.

Written as its users write it today: constructed with the storage, one
method that takes the pools so far and returns those it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from scheduler_service.model import Pool, ZoneRequest
from scheduler_service.settings import Settings


class Storage(Protocol):
    """What a pool filter may ask of the store, on one snapshot."""

    settings: Settings

    def get_pool(self, context: Any, pool_id: str) -> Pool:
        """Return a pool by id.

        :raises PoolNotFound: where there is none
        """

    def find_pools(self, context: Any) -> list[Pool]:
        """Return all pools."""

    def chance(self, count: int) -> int:
        """Return a random number from 0 to *count* - 1."""


class Caller(Protocol):
    """Who asks, as far as filters care."""

    def authorize(self, rule: str, target: dict[str, Any]) -> None:
        """Check a policy rule on *target*.

        :raises Forbidden: where the rule says no
        """


class PoolFilter:
    """Base of pool filters.

    :cvar name: the name to enable in ``scheduler_filters``
    :ivar storage: pools as they were when the request was taken
    """

    name: ClassVar[str] = ''

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return the pools that the zone may go to, of *pools* or others."""
        return pools


# The name that filters in the field derive from.
Filter = PoolFilter
