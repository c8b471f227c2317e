"""The ``random`` filter."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.filters.pools.base import Caller, PoolFilter
from scheduler_service.model import Pool, ZoneRequest


class RandomFilter(PoolFilter):
    """Chooses one of the pools at random."""

    name = 'random'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return one pool; none where no pool is left."""
        if not pools:
            return pools
        return [pools[self.storage.chance(len(pools))]]
