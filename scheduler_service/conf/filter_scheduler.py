"""Options of the [filter_scheduler] group: filters and weighers of hosts."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg, types

GROUP = 'filter_scheduler'


def _old(name: str) -> list[Any]:
    """Return an alias of the option, in [DEFAULT]."""
    return [cfg.DeprecatedOpt(name, group='DEFAULT')]


def _multiplier(name: str, what: str, default: float = 1.0) -> Any:
    return cfg.FloatOpt(
        name,
        default=default,
        deprecated_opts=_old(name),
        help=f"""
Multiplier of the weight for {what}.

Metadata with the name of this option on a host's aggregates overrides it; if
aggregates have several values, the smallest counts.

Possible values:

* positive: prefer hosts with more; negative: with less; 0: ignore
""",
    )


OPTS = [
    cfg.MultiStrOpt(
        'available_filters',
        default=['scheduler_service.filters.hosts.all_filters'],
        deprecated_opts=_old('scheduler_available_filters'),
        help="""
Host filters that may be enabled.

The option may be set several times. Filters that packages register under the
entry point ``scheduler_service.filters.hosts`` are always available.

Possible values:

* the dotted path of a filter class, or of a function that returns a list of
  filter classes; ``nova.scheduler.filters.all_filters`` stands for the filters
  that are built in

Related options:

* ``enabled_filters``
""",
    ),
    cfg.ListOpt(
        'enabled_filters',
        default=[
            'RetryFilter',
            'AvailabilityZoneFilter',
            'ComputeFilter',
            'RamFilter',
            'CoreFilter',
            'DiskFilter',
            'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter',
            'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter',
        ],
        deprecated_opts=_old('scheduler_default_filters'),
        help="""
Host filters that run for every request, in order.

Put fast filters that reject many hosts first. The daemon does not start if a
name is unknown.

Possible values:

* names of available filters
* dotted paths, as in ``available_filters``

Related options:

* ``available_filters``
""",
    ),
    cfg.ListOpt(
        'weight_classes',
        default=['scheduler_service.weighers.all_weighers'],
        deprecated_opts=_old('scheduler_weight_classes'),
        help="""
Weighers that rank the hosts that pass the filters.

Possible values:

* dotted paths of weigher classes or of functions that return a list of them,
  or names of weighers that are built in or registered under the entry point
  ``scheduler_service.weighers``; paths below ``nova.scheduler.weights`` stand
  for the weighers of the same name that are built in
""",
    ),
    cfg.BoolOpt(
        'search_cache',
        default=True,
        help="""
Whether to cache filter results and rankings for requests that are alike.

The cache makes requests faster with 20,000 hosts or more, and never changes
which host is selected. Turn it off to save its memory, some 100 MB, or to rule
it out when looking for a fault.
""",
    ),
    cfg.IntOpt(
        'host_subset_size',
        default=1,
        min=1,
        deprecated_opts=_old('scheduler_host_subset_size'),
        help="""
Select at random among this many best hosts.

With more than 1, several daemons compete less for the same hosts, and a
request does not always get the best host.
""",
    ),
    cfg.BoolOpt(
        'shuffle_best_same_weighed_hosts',
        default=False,
        deprecated_opts=_old('shuffle_best_same_weighed_hosts'),
        help="""
Select at random among the hosts with the best weight.

By default the first of them is selected. Random selection spreads instances
over equal hosts; it weighs all hosts for each request, which takes longer.
""",
    ),
    _multiplier('ram_weight_multiplier', 'free memory'),
    _multiplier('cpu_weight_multiplier', 'free vCPUs'),
    _multiplier('disk_weight_multiplier', 'free disk'),
    _multiplier('io_ops_weight_multiplier', 'I/O operations', -1.0),
    _multiplier('pci_weight_multiplier', 'few free PCI devices'),
    _multiplier(
        'soft_affinity_weight_multiplier',
        'members of its server group',
    ),
    _multiplier(
        'soft_anti_affinity_weight_multiplier',
        'no members of its server group',
    ),
    _multiplier(
        'build_failure_weight_multiplier', 'no failed builds', 1000000.0
    ),
    _multiplier(
        'cross_cell_move_weight_multiplier',
        'hosts in the same cell',
        1000000.0,
    ),
    _multiplier('hypervisor_version_weight_multiplier', 'newer hypervisors'),
    _multiplier('num_instances_weight_multiplier', 'instances', 0.0),
    cfg.FloatOpt(
        'host_order_weight_multiplier',
        default=0.0,
        help="""
Multiplier of HostOrderWeigher, which opens empty hosts in an order.

If it is larger than all multipliers that choose among used hosts, instances
go to empty hosts only where no used host passes the filters.

Metadata with the name of this option on a host's aggregates overrides it; if
aggregates have several values, the smallest counts.
""",
    ),
    cfg.ListOpt(
        'resource_weight_setting',
        default=[],
        item_type=types.String(regex=r'^[A-Z0-9_]+=[-+]?\d+(\.\d+)?$'),
        help="""
Resource classes that ResourceWeigher weighs, as ``CLASS=ratio``.

A positive ratio prefers hosts where more of the class is free, a negative
ratio those where less is. Empty: it weighs none.
""",
    ),
    cfg.FloatOpt(
        'resource_weight_multiplier',
        default=1.0,
        help="""
Multiplier of ResourceWeigher.

Metadata with the name of this option on a host's aggregates overrides it; if
aggregates have several values, the smallest counts.

Related options:

* ``resource_weight_setting``
""",
    ),
    _multiplier(
        'image_props_weight_multiplier',
        'instances of similar images',
        0.0,
    ),
    cfg.ListOpt(
        'image_props_weight_setting',
        default=[],
        help="""
Image properties that ImagePropertiesWeigher compares, as ``name=ratio``.

Empty: all properties, with ratio 1.
""",
    ),
    cfg.IntOpt(
        'max_io_ops_per_host',
        default=8,
        min=0,
        deprecated_opts=_old('max_io_ops_per_host'),
        help='IoOpsFilter rejects hosts from this many I/O operations on.',
    ),
    cfg.IntOpt(
        'max_instances_per_host',
        default=50,
        min=1,
        deprecated_opts=_old('max_instances_per_host'),
        help='NumInstancesFilter rejects hosts from this many instances on.',
    ),
    cfg.ListOpt(
        'isolated_images',
        default=[],
        deprecated_opts=_old('isolated_images'),
        help='Ids of images for which IsolatedHostsFilter reserves hosts.',
    ),
    cfg.ListOpt(
        'isolated_hosts',
        default=[],
        deprecated_opts=_old('isolated_hosts'),
        help='Hosts that IsolatedHostsFilter reserves for isolated images.',
    ),
    cfg.BoolOpt(
        'restrict_isolated_hosts_to_isolated_images',
        default=True,
        deprecated_opts=_old('restrict_isolated_hosts_to_isolated_images'),
        help='Whether ``isolated_hosts`` reject all other images.',
    ),
    cfg.StrOpt(
        'image_properties_default_architecture',
        help='The architecture of images that do not name any.',
    ),
    cfg.DictOpt(
        'plugin_options',
        default={},
        help="""
Options of plug-ins of your own, as NAME:VALUE,NAME:VALUE.

Plug-ins read them as texts in ``settings.plugin_options``.
""",
    ),
    cfg.StrOpt(
        'aggregate_image_properties_isolation_namespace',
        deprecated_opts=_old('aggregate_image_properties_isolation_namespace'),
        help="""
The namespace of properties that AggregateImagePropertiesIsolation compares.

Only properties whose names begin with the namespace and the separator count.
Unset: all properties count.
""",
    ),
    cfg.StrOpt(
        'aggregate_image_properties_isolation_separator',
        default='.',
        deprecated_opts=_old('aggregate_image_properties_isolation_separator'),
        help="""
The separator after ``aggregate_image_properties_isolation_namespace``.
""",
    ),
]
