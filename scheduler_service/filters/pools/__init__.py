"""Pool filters: their contract, and the table of built-in filters.

Plug-ins come by the entry points of ``NAMESPACES``: that of this service,
and that of the DNS service, whose pool filters run here unchanged.
"""

from scheduler_service.filters.pools.base import (
    Caller,
    Filter,
    PoolFilter,
    Storage,
)
from scheduler_service.filters.pools.built_in import BUILT_IN

NAMESPACES = ('scheduler_service.filters.pools', 'designate.scheduler.filters')

__all__ = [
    'BUILT_IN',
    'NAMESPACES',
    'Caller',
    'Filter',
    'PoolFilter',
    'Storage',
]
