"""Options for following a cluster, and for its kube-scheduler's calls."""

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

This needs the ``kubernetes`` extra of the package. While the API server is
unreachable, the daemon goes on with the nodes and pods that it read last, and
reports that it is degraded.

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
The path of a kubeconfig file with the API server's address and credentials.

Unset: ``[extender] api_server`` with its token and CA; if that is unset too,
the service account of the pod that the daemon runs in.
""",
    ),
    cfg.StrOpt(
        'context',
        mutable=True,
        default=None,
        help="""
The context of the kubeconfig file; unset: the file's current context.
""",
    ),
    cfg.BoolOpt(
        'keep_hosts',
        default=True,
        help="""
Whether followed nodes are kept as hosts in the database.

Of the daemons that share the database, one writes them. Off: nodes that are
not in the database are evaluated by their objects at the API server.
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
Which labels of nodes become traits or metadata, as ``LABEL:TARGET`` pairs.

``*`` in a label stands for any characters. The first pair that matches a label
counts. ``trait.D/NAME``, where D is ``[extender] domain``, and
``feature.node.kubernetes.io/cpu-cpuid.NAME`` are traits in any case.

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

These taints do not affect pods: a kube-scheduler checks all taints against
their tolerations itself.
""",
    ),
    cfg.BoolOpt(
        'record_decisions',
        mutable=True,
        default=True,
        help="""
Whether a decision with its reasons is stored for each call for a pod.

``scheduler-manage decision list --pod NAMESPACE/NAME`` lists those on a pod;
``[scheduler] decisions_kept`` limits them.
""",
    ),
    cfg.ListOpt(
        'ignored_namespaces',
        mutable=True,
        default=['kube-system'],
        help="""
Namespaces whose pods are left to the kube-scheduler alone.

In calls for these pods every node passes and all scores are equal, and no
decision is stored. Where such a pod runs, it counts as use like any other.
""",
    ),
    cfg.ListOpt(
        'ignored_labels',
        mutable=True,
        default=[],
        sample_default=['example.com/placed-by=kube-scheduler'],
        help="""
Labels of further pods that are left to the kube-scheduler alone.

Each is ``LABEL=VALUE``, or ``LABEL`` for any value.
""",
    ),
    cfg.ListOpt(
        'managed_resources',
        default=None,
        sample_default=['example.com/fpga'],
        help="""
The extended resources of pods that this service checks.

List what a kube-scheduler's configuration has in this service's
``managedResources``: without the list, pods that request one of these pass
everywhere while no host offers it. All other resources are left to the
kube-scheduler, its plug-ins and other extenders, except for those of
``[extender] domain`` and those of a request in an annotation.

Unset: every resource that some host offers.
""",
    ),
    cfg.BoolOpt(
        'shared_hosts',
        default=False,
        help="""
Whether instances are placed on the nodes of the cluster as well.

Then what pods request of processors, memory and storage is claimed of the
hosts, as instances claim it, and a node passes for a pod only if it has as
much left beside the instances there. This needs ``enabled`` and
``keep_hosts``. Pods never overcommit a host, whatever its allocation ratios
are, which count for instances. Off: only extended resources are claimed.

Related options:

* ``managed_resources``
* ``[extender] api_server``
""",
    ),
    cfg.FloatOpt(
        'assume_seconds',
        default=15.0,
        min=0.0,
        help="""
How long a pod is assumed on the node with the best score, in seconds.

A pod that is seen on a node counts there from then on. Without assumed pods, a
burst of pods would go to the same nodes. 0: only pods that are seen count.
Assumed pods lower scores, and refuse no other pod.
""",
    ),
]

# Options of the group [extender] for calls of a kube-scheduler.
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
Host filters that run for the pods of a kube-scheduler's calls.

A kube-scheduler checks processors, memory, storage and the number of pods
itself before the call.
""",
    ),
    cfg.ListOpt(
        'weight_classes',
        mutable=True,
        default=['scheduler_service.weighers.all_weighers'],
        help="Weighers that run for the pods of a kube-scheduler's calls.",
    ),
    cfg.StrOpt(
        'api_server',
        mutable=True,
        default=None,
        sample_default='https://10.0.0.1:6443',
        help="""
The URL of the API server at which pods are bound.

Unset: ``/extender/bind`` is not served.

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
How often a daemon that binds pods without following them lists all pods, in
seconds.

With ``api_server`` and without ``[kubernetes] enabled``, a pod counts on its
node from the moment when this daemon binds it. The lists show which pods have
ended, and which another scheduler placed. The daemon needs the verb ``list``
on ``pods``. 0: pods are not counted.

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

Set it below ``httpTimeout`` in the configuration of the kube-scheduler, 5 s by
default, so that the pod's events say why it was not bound. Binds run on
``[http] threads`` threads of their own, so nodes are still filtered and scored
while the API server hangs.
""",
    ),
]


def register_opts(conf: Any) -> None:
    conf.register_opts(OPTS, group=GROUP)
    conf.register_opts(EXTENDER_OPTS, group=EXTENDER_GROUP)
