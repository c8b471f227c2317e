"""The ``pool_id_attribute`` filter."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.filters.pools.base import Caller, PoolFilter
from scheduler_service.model import Pool, ZoneRequest

RULE = 'zone_create_forced_pool'


class PoolIDAttributeFilter(PoolFilter):
    """Chooses the pool that the zone names by its attribute ``pool_id``.

    The pool has to exist, and the policy rule ``zone_create_forced_pool``
    has to allow it. A pool that an earlier filter dropped is an error: no
    other pool is chosen instead.
    """

    name = 'pool_id_attribute'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Return the pool that is named; all pools where none is named.

        :raises PoolNotFound: there is no such pool
        :raises Forbidden: the policy does not let the caller name a pool
        :raises ForcedPoolFilteredOut: an earlier filter dropped it
        """
        pool_id = zone.attributes.get('pool_id')
        if not pool_id:
            return pools
        pool = self.storage.get_pool(context, pool_id)
        target = {'pool_id': pool.id, 'project_id': zone.project_id}
        context.authorize(RULE, target)
        if all(candidate.id != pool.id for candidate in pools):
            raise errors.ForcedPoolFilteredOut(pool_id=pool.id)
        return [pool]
