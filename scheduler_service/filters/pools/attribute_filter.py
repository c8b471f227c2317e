"""The ``attribute`` filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_service.filters.pools.base import Caller, PoolFilter
from scheduler_service.model import Pool, ZoneRequest

_TRUE = frozenset(('1', 't', 'true', 'on', 'y', 'yes'))
_FALSE = frozenset(('0', 'f', 'false', 'off', 'n', 'no'))


class AttributeFilter(PoolFilter):
    """Leaves the pools that have every attribute the zone asks for.

    Words for yes and no are one each (``1``, ``t``, ``true``, ``on``, ``y``,
    ``yes``, and their opposites); other values compare exactly. ``pool_id``
    is not an attribute of a pool: another filter looks at it.
    """

    name = 'attribute'

    def filter(
        self, context: Caller, pools: Sequence[Pool], zone: ZoneRequest
    ) -> Sequence[Pool]:
        """Drop pools that miss an attribute, or have another value."""
        asked = {
            key: _plain(value)
            for key, value in zone.attributes.items()
            if key != 'pool_id'
        }
        return [pool for pool in pools if _offers(pool.attributes, asked)]


def _offers(
    attributes: Mapping[str, str], asked: Mapping[str, object]
) -> bool:
    return all(
        key in attributes and _plain(attributes[key]) == value
        for key, value in asked.items()
    )


def _plain(value: str) -> bool | str:
    """Return a word for yes or no as a boolean, anything else as it is."""
    word = value.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else value
