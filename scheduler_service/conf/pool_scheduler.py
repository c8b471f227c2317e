"""Options of the [pool_scheduler] group: which pool a zone goes to."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from scheduler_service.settings import DEFAULT_POOL_ID

GROUP = 'pool_scheduler'


def _also(name: str) -> list[Any]:
    """Return the option's place in a DNS service's file."""
    return [
        cfg.DeprecatedOpt(name, group='service:central'),
        cfg.DeprecatedOpt(name, group='DEFAULT'),
    ]


OPTS = [
    cfg.ListOpt(
        'scheduler_filters',
        default=['default_pool'],
        deprecated_opts=_also('scheduler_filters'),
        help="""
Pool filters that every zone runs, from left to right.

Read from ``[service:central]`` too. A name that does not load stops the
start.

Possible values:

* names of the filters that come with the service: attribute,
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
        deprecated_opts=_also('default_pool_id'),
        help="""
The pool of the filters default_pool, fallback and in_doubt_default_pool.

Read from ``[service:central]`` too.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
