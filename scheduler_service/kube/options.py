"""Options of the [kubernetes] group: a cluster whose API server we follow."""

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


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
