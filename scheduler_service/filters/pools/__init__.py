"""Pool filters, one module each, and the table of built-in filters.

Plug-ins come by the entry points of ``NAMESPACES``: that of this service,
and that of the DNS service, whose pool filters run here unchanged.
"""

from __future__ import annotations

from scheduler_service.filters.pools.attribute_filter import AttributeFilter
from scheduler_service.filters.pools.base import (
    Caller,
    Filter,
    PoolFilter,
    Storage,
)
from scheduler_service.filters.pools.default_pool_filter import (
    DefaultPoolFilter,
)
from scheduler_service.filters.pools.fallback_filter import FallbackFilter
from scheduler_service.filters.pools.in_doubt_default_pool_filter import (
    InDoubtDefaultPoolFilter,
)
from scheduler_service.filters.pools.pool_id_attribute_filter import (
    PoolIDAttributeFilter,
)
from scheduler_service.filters.pools.random_filter import RandomFilter

BUILT_IN: tuple[type[PoolFilter], ...] = (
    AttributeFilter,
    PoolIDAttributeFilter,
    RandomFilter,
    FallbackFilter,
    DefaultPoolFilter,
    InDoubtDefaultPoolFilter,
)
NAMESPACES = ('scheduler_service.filters.pools', 'designate.scheduler.filters')

__all__ = [
    'BUILT_IN',
    'NAMESPACES',
    'Caller',
    'Filter',
    'PoolFilter',
    'Storage',
]
