"""Typed documents: inventory, requests and replies.

Plain data without locks: whoever has an object may read it.
"""

from scheduler_service.model.inventory import (
    NESTED_FIELDS,
    STANDARD_CLASSES,
    STANDARD_FIELDS,
    Aggregate,
    Attributes,
    Host,
    HostReport,
    Instance,
    Inventory,
    Metric,
    Pool,
    ReportedHost,
    Resource,
    ServerGroup,
    UnitLimits,
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
    Entry,
    Flavor,
    Image,
    Request,
    Retry,
    SelectEntry,
    ZoneEntry,
    ZoneRequest,
)

__all__ = [
    'NESTED_FIELDS',
    'STANDARD_CLASSES',
    'STANDARD_FIELDS',
    'Aggregate',
    'Attributes',
    'Destination',
    'Entry',
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
    'ReportedHost',
    'Request',
    'Resource',
    'Retry',
    'SelectEntry',
    'Selection',
    'ServerGroup',
    'UnitLimits',
    'ZoneEntry',
    'ZoneRequest',
    'plain',
]
