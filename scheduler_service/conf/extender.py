"""Options of the [extender] group: extenders, both ways."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'extender'

OPTS = [
    cfg.StrOpt(
        'policy_file',
        default=None,
        sample_default='/etc/scheduler_service/policy.json',
        help="""
The file that lists the extenders which have a say in requests.

Possible values:

* JSON with ``kind: Policy``, as older container schedulers read it; its
  ``predicates`` and ``priorities``, where given, take the place of
  ``[filter_scheduler] enabled_filters`` and ``weight_classes``
* YAML or JSON with ``kind: KubeSchedulerConfiguration``
* unset: no extender is called
""",
    ),
    cfg.StrOpt(
        'domain',
        default='scheduler-service.local',
        help="""
The domain of our labels, annotations and extended resources.

They travel to extenders, and are read from the objects that come to us as an
extender.
""",
    ),
    cfg.IntOpt(
        'threads',
        default=16,
        min=1,
        max=256,
        help='How many requests are asked about at once.',
    ),
    cfg.IntOpt(
        'max_nodes',
        default=500,
        min=1,
        help="""
How many nodes are sent to extenders in one call, the best by weight first.

If they let none of them pass, they are asked about the next best.
""",
    ),
    cfg.ListOpt(
        'enabled_filters',
        default=[
            'AvailabilityZoneFilter',
            'ComputeFilter',
            'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter',
            'AggregateInstanceExtraSpecsFilter',
            'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter',
        ],
        help="""
Host filters that run for pods, where we are the extender.

A kube-scheduler has checked processors, memory, storage and the number of
pods itself before it asks.
""",
    ),
    cfg.ListOpt(
        'weight_classes',
        default=['scheduler_service.weighers.all_weighers'],
        help='Weighers that score nodes for pods.',
    ),
    cfg.StrOpt(
        'api_server',
        default=None,
        sample_default='https://10.0.0.1:6443',
        help="""
The API server that pods are bound at.

Without it the bind verb is not offered.

Related options:

* ``api_token_file``
* ``api_ca_file``
""",
    ),
    cfg.StrOpt(
        'api_token_file',
        default=None,
        help='A file with the bearer token for the API server.',
    ),
    cfg.StrOpt(
        'api_ca_file',
        default=None,
        help="The CA of the API server's certificate.",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
