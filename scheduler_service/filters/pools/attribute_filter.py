"""The ``attribute`` filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_service.filters.pools.base import Caller, PoolFilter
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

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Drop pools without an attribute, or with another value of it."""
        required = {
            key: _normalized(value)
            for key, value in zone.attributes.items()
            if key != 'pool_id'
        }
        keeps = self.storage.settings.keep_pools_without_attributes
        return [
            pool
            for pool in pools
            if (keeps and is_bare(pool)) or _has_all(pool.attributes, required)
        ]


def is_bare(pool: Pool) -> bool:
    """Whether a pool has no attributes that zones may ask for."""
    return not pool.attributes.keys() - {'pool_id'}


def _has_all(
    attributes: Mapping[str, str], required: Mapping[str, object]
) -> bool:
    return all(
        key in attributes and _normalized(attributes[key]) == value
        for key, value in required.items()
    )


def _normalized(value: str) -> bool | str:
    """Return a word for yes or no as a boolean, other values unchanged."""
    word = value.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else value
