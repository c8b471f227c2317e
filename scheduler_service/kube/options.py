"""Options of a cluster that is followed, and of calls of its scheduler."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'kubernetes'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=False,
        help="""
Whether the nodes and pods of a cluster are followed at its API server.

Needs the ``kubernetes`` extra of the package. While the API server cannot be
reached, the daemon goes on with what it knows, and reports that it is
degraded.

Related options:

* ``kubeconfig``
* ``[extender] api_server``
""",
    ),
    cfg.StrOpt(
        'kubeconfig',
        mutable=True,
        default=None,
        sample_default='/etc/scheduler_service/kubeconfig',
        help="""
The path of a kubeconfig file with the address and credentials to use.

Unset, ``[extender] api_server`` is used with its token and CA if it is set,
and else the service account of the pod that the daemon runs in.
""",
    ),
    cfg.StrOpt(
        'context',
        mutable=True,
        default=None,
        help='The context of the kubeconfig file; unset: its current one.',
    ),
    cfg.BoolOpt(
        'keep_hosts',
        default=True,
        help="""
Whether the nodes are kept as hosts of the store.

One daemon of those that share the store writes. Off, nodes that are not in
the store are evaluated by what the API server says of them.
""",
    ),
    cfg.DictOpt(
        'labels',
        default={},
        sample_default={
            'example.com/ssd': 'trait',
            'example.com/pool': 'metadata.pool',
        },
        help="""
What labels of nodes become, as ``LABEL:TARGET`` pairs.

``*`` in a label stands for any characters. The first label that matches
counts. ``trait.D/NAME`` and ``feature.node.kubernetes.io/cpu-cpuid.NAME`` are
traits in any case.

Possible targets:

* ``trait``: a trait ``CUSTOM_LABEL`` where the value is ``true``, none where
  it is ``false``, and ``CUSTOM_LABEL_VALUE`` for any other value, each in
  capitals with ``_`` for everything but letters and digits
* ``trait.NAME``: the trait NAME, unless the value is ``false``
* ``metadata``: metadata of an aggregate of all nodes with this value, under
  the label
* ``metadata.KEY``: the same, under KEY
""",
    ),
    cfg.ListOpt(
        'disabling_taints',
        default=[
            'node.kubernetes.io/unschedulable',
            'node.kubernetes.io/out-of-service',
            'ToBeDeletedByClusterAutoscaler',
        ],
        help="""
Keys of taints that make a host disabled for callers over RPC.

Pods go by their tolerations alone: a kube-scheduler checks all taints itself.
""",
    ),
    cfg.FloatOpt(
        'assume_seconds',
        default=15.0,
        min=0.0,
        help="""
How long a pod counts on the node that scores put first, in seconds.

Until it is seen on a node: then it counts there. A burst of pods would
otherwise go to the same nodes. 0: pods count when they are seen. This lowers
scores; extended resources are kept for such a pod only where the daemon binds.
""",
    ),
]

# Of the group for extenders, those for being one: calls of a kube-scheduler.
EXTENDER_GROUP = 'extender'

EXTENDER_OPTS = [
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
    conf.register_opts(EXTENDER_OPTS, group=EXTENDER_GROUP)
