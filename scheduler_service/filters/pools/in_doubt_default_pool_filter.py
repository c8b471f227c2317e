"""The ``in_doubt_default_pool`` filter."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.filters.pools.base import Caller, PoolFilter
from scheduler_service.model import Pool, ZoneRequest


class InDoubtDefaultPoolFilter(PoolFilter):
    """Chooses the default pool if it is one of several pools left."""

    name = 'in_doubt_default_pool'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return the default pool if it is one of several, else all."""
        if len(pools) < 2:
            return pools
        default_id = self.storage.settings.default_pool_id
        return [pool for pool in pools if pool.id == default_id] or pools
