"""Typed documents: what can be chosen, what is asked, what is answered."""

from scheduler_service.model.inventory import (
    STANDARD_CLASSES,
    Aggregate,
    Attributes,
    Host,
    HostReport,
    Instance,
    Inventory,
    Metric,
    Pool,
    Resource,
    ServerGroup,
    ToldHost,
)
from scheduler_service.model.reply import (
    HostsAnswer,
    Placement,
    PoolAnswer,
    Selection,
    plain,
)
from scheduler_service.model.request import (
    Destination,
    Flavor,
    Image,
    Request,
    Retry,
    ZoneRequest,
)

__all__ = [
    'STANDARD_CLASSES',
    'Aggregate',
    'Attributes',
    'Destination',
    'Flavor',
    'Host',
    'HostReport',
    'HostsAnswer',
    'Image',
    'Instance',
    'Inventory',
    'Metric',
    'Placement',
    'Pool',
    'PoolAnswer',
    'Request',
    'Resource',
    'Retry',
    'Selection',
    'ServerGroup',
    'ToldHost',
    'ZoneRequest',
    'plain',
]
