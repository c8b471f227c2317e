"""The ``fallback`` filter."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.filters.pools.base import Caller, PoolFilter
from scheduler_service.filters.pools.default_pool_filter import default_pool
from scheduler_service.model import Pool, ZoneRequest


class FallbackFilter(PoolFilter):
    """Adds the default pool where no pool is left."""

    name = 'fallback'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return the pools; the default pool where there are none."""
        return pools or [default_pool(self.storage, context)]
