"""The pool filters that come with the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.filters.pools.base import Caller, PoolFilter, Storage
from scheduler_service.model import Pool, ZoneRequest

_TRUE = frozenset(('1', 't', 'true', 'on', 'y', 'yes'))
_FALSE = frozenset(('0', 'f', 'false', 'off', 'n', 'no'))


class AttributeFilter(PoolFilter):
    """Keeps the pools that have every attribute the zone asks for.

    ``1``, ``t``, ``true``, ``on``, ``y`` and ``yes`` are equal to each other,
    and so are their opposites; other values compare exactly. ``pool_id`` is
    ignored: the filter ``pool_id_attribute`` handles it. With
    ``keep_pools_without_attributes`` pools that have none are kept, too.
    """

    name = 'attribute'

    def missed(self, pool: Pool, zone: ZoneRequest) -> Sequence[str]:
        if self.storage.settings.keep_pools_without_attributes and is_bare(
            pool
        ):
            return ()
        has = pool.attributes
        return [
            f'{key} {value} is requested, it has {has.get(key, "none")}'
            for key, value in zone.attributes.items()
            if key != 'pool_id'
            and (key not in has or _normalized(value) != _normalized(has[key]))
        ]


def is_bare(pool: Pool) -> bool:
    """Whether a pool has no attributes that zones may ask for."""
    return not pool.attributes.keys() - {'pool_id'}


def _normalized(value: str) -> bool | str:
    """Return a word for yes or no as a boolean, other values unchanged."""
    word = value.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else value


RULE = 'zone_create_forced_pool'


class PoolIDAttributeFilter(PoolFilter):
    """Chooses the pool that the zone names by its attribute ``pool_id``.

    The pool has to exist, and the policy rule ``zone_create_forced_pool``
    has to allow it. A pool that an earlier filter dropped is an error: no
    other pool is chosen instead.
    """

    name = 'pool_id_attribute'
    why = 'another pool is requested by its id'

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


class RandomFilter(PoolFilter):
    """Chooses one of the pools at random."""

    name = 'random'
    why = 'another pool was drawn'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        if not pools:
            return pools
        return [pools[self.storage.chance(len(pools))]]


class FallbackFilter(PoolFilter):
    """Adds the default pool where no pool is left."""

    name = 'fallback'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        return pools or [default_pool(self.storage, context)]


class DefaultPoolFilter(PoolFilter):
    """Replaces all pools by the configured default pool."""

    name = 'default_pool'
    why = 'the default pool replaces all others'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
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


class InDoubtDefaultPoolFilter(PoolFilter):
    """Chooses the default pool if it is one of several pools left."""

    name = 'in_doubt_default_pool'
    why = 'the default pool goes before others'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        if len(pools) < 2:
            return pools
        default_id = self.storage.settings.default_pool_id
        return [pool for pool in pools if pool.id == default_id] or pools


BUILT_IN: tuple[type[PoolFilter], ...] = (
    AttributeFilter,
    PoolIDAttributeFilter,
    RandomFilter,
    FallbackFilter,
    DefaultPoolFilter,
    InDoubtDefaultPoolFilter,
)
