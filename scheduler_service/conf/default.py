"""Options of the [DEFAULT] group: allocation ratios and zones."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None
_RATIO_HELP = """
Allocation ratio of {what}: capacity is the host's total times this ratio.

It applies to hosts whose own ratio is absent or 0.

Possible values:

* any number above 0; 1.0 allows no overcommitment

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
Whether a single instance may be larger than the host's total.

Possible values:

* true: an instance may be as large as total x ratio
* false: an instance may not be larger than the host's total, as in later
  releases of the compute service
""",
    ),
    cfg.StrOpt(
        'default_availability_zone',
        default='nova',
        help='The availability zone of hosts whose aggregates have none.',
    ),
]
