"""Options of the [metrics] group: weighing by what hosts report."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'metrics'

OPTS = [
    cfg.FloatOpt(
        'weight_multiplier',
        default=1.0,
        help="""
Multiplier of the weight of metrics.

The metadata ``metrics_weight_multiplier`` of a host's aggregates goes before
it.
""",
    ),
    cfg.ListOpt(
        'weight_setting',
        default=[],
        help="""
Metrics that are weighed and that MetricsFilter requires, ``name=ratio``.

An entry that cannot be read is left out.
""",
    ),
    cfg.BoolOpt(
        'required',
        default=True,
        help='Refuse a request when a host lacks a metric of the setting.',
    ),
    cfg.FloatOpt(
        'weight_of_unavailable',
        default=-10000.0,
        help='The weight of a host that lacks a metric, if none is required.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
