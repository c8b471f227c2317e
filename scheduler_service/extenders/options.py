"""Options of the [extender] group for calls to extenders.

``kube.options`` has the options for a kube-scheduler's calls to us.
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
  kube-schedulers; its ``predicates`` and ``priorities``, if given, replace
  ``[filter_scheduler] enabled_filters`` and ``weight_classes``
* the path of a YAML or JSON file with ``kind: KubeSchedulerConfiguration``
* unset: no extender is called
""",
    ),
    cfg.BoolOpt(
        'ignore_unknown_predicates',
        mutable=True,
        default=False,
        help="""
Whether predicates and priorities without an equivalent here are left out.

The log names each of them. Otherwise the daemon does not start with a
``policy_file`` that has one.
""",
    ),
    cfg.StrOpt(
        'domain',
        default='scheduler-service.local',
        required=True,
        help="""
The domain of the scheduler's own labels, annotations and extended resources.

The daemon sets them on nodes and pods that it sends to extenders, and reads
them from those that a kube-scheduler sends.
""",
    ),
    cfg.IntOpt(
        'threads',
        mutable=True,
        default=16,
        min=1,
        max=256,
        help='The most requests for which extenders are called at a time.',
    ),
    cfg.IntOpt(
        'max_nodes',
        mutable=True,
        default=500,
        min=1,
        help="""
The most nodes that are sent to extenders in one call.

The nodes with the highest weights are sent first; if none of them passes, the
next ones are sent.
""",
    ),
]


def register_opts(conf: Any) -> None:
    conf.register_opts(OPTS, group=GROUP)
