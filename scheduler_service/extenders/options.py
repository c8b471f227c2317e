"""Options of the [extender] group: extenders that we call, and being one."""

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
    cfg.ListOpt(
        'enabled_filters',
        mutable=True,
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
Host filters that run for pods when we are called as an extender.

A kube-scheduler checks processors, memory, storage and the number of pods
itself before the call.
""",
    ),
    cfg.ListOpt(
        'weight_classes',
        mutable=True,
        default=['scheduler_service.weighers.all_weighers'],
        help='Weighers that run for pods when we are called as an extender.',
    ),
    cfg.StrOpt(
        'api_server',
        mutable=True,
        default=None,
        sample_default='https://10.0.0.1:6443',
        help="""
The URL of the API server at which pods are bound.

Unset, ``/extender/bind`` is not served.

Related options:

* ``api_token_file``
* ``api_ca_file``
* ``api_timeout``
* ``count_interval``
""",
    ),
    cfg.FloatOpt(
        'count_interval',
        default=60.0,
        min=0.0,
        help="""
How often pods are listed where they are bound but not followed, in seconds.

With ``api_server`` and without ``[kubernetes] enabled``, a pod counts on its
node from the moment when this daemon binds it. Lists of all pods that are on
nodes say which are gone, and what others placed: the daemon needs the verb
``list`` on ``pods``. 0: pods are not counted.

Related options:

* ``api_server``
* ``[kubernetes] enabled``
* ``[kubernetes] assume_seconds``
""",
    ),
    cfg.StrOpt(
        'api_token_file',
        mutable=True,
        default=None,
        help='The path of a file with the bearer token for the API server.',
    ),
    cfg.StrOpt(
        'api_ca_file',
        mutable=True,
        default=None,
        help="The path of the CA of the API server's certificate.",
    ),
    cfg.FloatOpt(
        'api_timeout',
        mutable=True,
        default=4.0,
        min=0.1,
        help="""
How long binding a pod may take, in seconds.

Shorter than ``httpTimeout`` in the configuration of the kube-scheduler, 5 s by
default, so that the pod's events say why it was not bound. Binds have
``[http] threads`` threads of their own: while the API server hangs, nodes are
filtered and scored all the same.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
