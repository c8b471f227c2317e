"""The ``default_pool`` filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.filters.pools.base import Caller, PoolFilter, Storage
from scheduler_service.model import Pool, ZoneRequest


class DefaultPoolFilter(PoolFilter):
    """Replaces all pools by the configured default pool."""

    name = 'default_pool'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return the default pool alone."""
        return [default_pool(self.storage, context)]


def default_pool(storage: Storage, context: Any) -> Pool:
    """Return the configured default pool.

    A pool that is not in the store yet has its id for a name.
    """
    pool_id = storage.settings.default_pool_id
    try:
        return storage.get_pool(context, pool_id)
    except errors.PoolNotFound:
        return Pool(id=pool_id, name=pool_id)
