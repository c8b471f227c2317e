"""Options of the [DEFAULT] group: allocation ratios and zones."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = None
_RATIO_HELP = """
How much of a host's {what} may be promised, as a factor on its total.

It applies to hosts that state no ratio of their own, or state 0.

Possible values:

* any number above 0; 1.0 promises just what is there

Related options:

* ``allow_self_overcommit``
"""

OPTS = [
    cfg.FloatOpt(
        'cpu_allocation_ratio',
        default=16.0,
        min=0.0,
        help=_RATIO_HELP.format(what='vCPUs'),
    ),
    cfg.FloatOpt(
        'ram_allocation_ratio',
        default=1.5,
        min=0.0,
        help=_RATIO_HELP.format(what='memory'),
    ),
    cfg.FloatOpt(
        'disk_allocation_ratio',
        default=1.0,
        min=0.0,
        help=_RATIO_HELP.format(what='disk'),
    ),
    cfg.BoolOpt(
        'allow_self_overcommit',
        default=True,
        help="""
Let a single instance use more than the host has, up to the ratio.

Possible values:

* true: an instance may be as large as total x ratio
* false: an instance may not be larger than the host itself, as later
  releases of the compute service have it
""",
    ),
    cfg.StrOpt(
        'default_availability_zone',
        default='nova',
        help='The zone of hosts that are in no aggregate with a zone.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS)
