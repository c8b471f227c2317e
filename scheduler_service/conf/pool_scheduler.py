"""Options of the [pool_scheduler] group: selecting a pool for a zone."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from scheduler_service.settings import DEFAULT_POOL_ID

GROUP = 'pool_scheduler'


def _dns_service_names(name: str) -> list[Any]:
    """Return the names of the option in a DNS service's file."""
    return [
        cfg.DeprecatedOpt(name, group='service:central'),
        cfg.DeprecatedOpt(name, group='DEFAULT'),
    ]


OPTS = [
    cfg.ListOpt(
        'scheduler_filters',
        default=['default_pool'],
        deprecated_opts=_dns_service_names('scheduler_filters'),
        help="""
Pool filters that run for every zone, in order.

``[service:central]`` is read as well. The daemon does not start if a name is
unknown.

Possible values:

* names of built-in filters: attribute,
  pool_id_attribute, random, fallback, default_pool, in_doubt_default_pool
* names registered under the entry points ``scheduler_service.filters.pools``
  and ``designate.scheduler.filters``

Related options:

* ``default_pool_id``
""",
    ),
    cfg.StrOpt(
        'default_pool_id',
        default=DEFAULT_POOL_ID,
        required=True,
        deprecated_opts=_dns_service_names('default_pool_id'),
        help="""
The id of the pool that the filters default_pool, fallback and
in_doubt_default_pool select.

``[service:central]`` is read as well.
""",
    ),
    cfg.BoolOpt(
        'keep_pools_without_attributes',
        default=False,
        help="""
Whether the filter attribute keeps a pool that has no attributes.

The DNS service's own filter of this name keeps such a pool for every zone. By
default this filter drops it for a zone that requires any attribute.
""",
    ),
]
