"""Options of the [metrics] group: weights by metrics that hosts report."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'metrics'

OPTS = [
    cfg.FloatOpt(
        'weight_multiplier',
        default=1.0,
        help="""
Multiplier of the weight of metrics.

Metadata ``metrics_weight_multiplier`` of a host's aggregates overrides it.
""",
    ),
    cfg.ListOpt(
        'weight_setting',
        default=[],
        help="""
Metrics that MetricsWeigher weighs and MetricsFilter requires, as
``name=ratio``.

Entries in any other form are ignored.
""",
    ),
    cfg.BoolOpt(
        'required',
        default=True,
        help="""
Whether a request fails if a host does not report a metric of
``weight_setting``.
""",
    ),
    cfg.FloatOpt(
        'weight_of_unavailable',
        default=-10000.0,
        help="""
The weight of a host that does not report a metric of ``weight_setting``.

It counts where ``required`` is false.
""",
    ),
]
