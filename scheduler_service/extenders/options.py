"""Options of the [extender] group for extenders that are called.

``kube.options`` has those for being one.
"""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'extender'

OPTS = [
    cfg.StrOpt(
        'policy_file',
        mutable=True,
        default=None,
        sample_default='/etc/scheduler_service/policy.json',
        help="""
The file that lists the HTTP extenders to call for requests.

Possible values:

* the path of a JSON file with ``kind: Policy``, the format of older
  container schedulers; its ``predicates`` and ``priorities``, if given,
  replace ``[filter_scheduler] enabled_filters`` and ``weight_classes``
* the path of a YAML or JSON file with ``kind: KubeSchedulerConfiguration``
* unset: no extender is called
""",
    ),
    cfg.StrOpt(
        'domain',
        default='scheduler-service.local',
        help="""
The domain of our labels, annotations and extended resources.

They are set on the objects that are sent to extenders, and read from those
that are sent to us as an extender.
""",
    ),
    cfg.IntOpt(
        'threads',
        mutable=True,
        default=16,
        min=1,
        max=256,
        help='For how many requests extenders are called at the same time.',
    ),
    cfg.IntOpt(
        'max_nodes',
        mutable=True,
        default=500,
        min=1,
        help="""
The most nodes that are sent to extenders in one call, the best by weight.

If none of them passes, the next best are sent.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
