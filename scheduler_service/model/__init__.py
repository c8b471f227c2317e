"""Typed documents: inventory, requests and replies.

Plain data without locks: any thread may read an object.
"""

from scheduler_service.model.inventory import (
    COUNT_FIELDS,
    ENCODED_FIELDS,
    FLAG_FIELDS,
    HOST_ATTRIBUTES,
    NESTED_FIELDS,
    STANDARD_CLASSES,
    STANDARD_FIELDS,
    Aggregate,
    Attributes,
    Host,
    HostColumn,
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
from scheduler_service.model.request import Entry, Request, ZoneRequest
from scheduler_service.model.request_parts import (
    Destination,
    Flavor,
    Image,
    Retry,
)
