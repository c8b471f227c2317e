"""Typed documents: what can be chosen, what is asked, what is answered."""

from scheduler_service.model.inventory import (
    STANDARD_CLASSES,
    Aggregate,
    Attributes,
    Host,
    Instance,
    Inventory,
    Metric,
    Pool,
    Resource,
    ServerGroup,
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
    'ZoneRequest',
    'plain',
]
