"""The contract of pool filters.

A filter is made for one request, with the pools of a snapshot as its
storage. Its one method takes the pools that earlier filters left and returns
those that it leaves. It is called by the engine's thread and has to return
without waiting for anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from scheduler_service.model import Pool, ZoneRequest
from scheduler_service.settings import Settings


class Storage(Protocol):
    """What a pool filter may look up; all of it on one snapshot."""

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
    """Who makes the request, as pool filters see it."""

    def authorize(self, rule: str, target: dict[str, Any]) -> None:
        """Check a policy rule.

        :param rule: its name
        :param target: what is to be acted on
        :raises Forbidden: the rule does not allow it
        """


class PoolFilter:
    """Base of pool filters.

    :cvar name: to list in the option ``scheduler_filters``; the name of the
        class where empty
    :cvar why: why it leaves a pool out, where :meth:`missed` does not say
    :ivar storage: the pools of the snapshot that the request is decided on
    """

    name: ClassVar[str] = ''
    why: ClassVar[str] = 'the filter leaves it out'

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return the pools that the zone may go to.

        By default those that miss nothing. They may include pools that are
        not in *pools*.

        :raises SchedulerError: the request is refused
        """
        return [pool for pool in pools if not self.missed(pool, zone)]

    def missed(self, pool: Pool, zone: ZoneRequest) -> Sequence[str]:
        """Return each requirement of the zone that a pool does not meet."""
        return ()


# The name of the base class that existing filters derive from.
Filter = PoolFilter
