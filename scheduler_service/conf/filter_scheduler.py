"""Options of the [filter_scheduler] group: filters and weighers of hosts."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'filter_scheduler'


def _old(name: str) -> list[Any]:
    """Return the option's place in older files, [DEFAULT]."""
    return [cfg.DeprecatedOpt(name, group='DEFAULT')]


def _multiplier(name: str, what: str, default: float = 1.0) -> Any:
    return cfg.FloatOpt(
        name,
        default=default,
        deprecated_opts=_old(name),
        help=f"""
Multiplier of the weight for {what}.

Metadata of the same name on a host's aggregates goes before it, the least
of several.

Possible values:

* positive: prefer hosts with more of it; negative: with less; 0: ignore it
""",
    )


OPTS = [
    cfg.MultiStrOpt(
        'available_filters',
        default=['scheduler_service.filters.hosts.all_filters'],
        deprecated_opts=_old('scheduler_available_filters'),
        help="""
Host filters that may be enabled.

May be given several times. Filters that packages register under the entry
point ``scheduler_service.filters.hosts`` are available without it.

Possible values:

* the dotted path of a filter class, or of a function that returns a list of
  filter classes

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
Host filters that every request runs, in order.

Put cheap ones that leave few hosts first. A name that does not load stops
the start.

Possible values:

* names of available filters

Related options:

* ``available_filters``
""",
    ),
    cfg.ListOpt(
        'weight_classes',
        default=['scheduler_service.weighers.all_weighers'],
        deprecated_opts=_old('scheduler_weight_classes'),
        help="""
Weighers that order the hosts which pass the filters.

Possible values:

* dotted paths of weigher classes or of functions that return a list of them,
  or names of weighers that come with the service or by the entry point
  ``scheduler_service.weighers``
""",
    ),
    cfg.IntOpt(
        'host_subset_size',
        default=1,
        min=1,
        deprecated_opts=_old('scheduler_host_subset_size'),
        help="""
Pick at random among this many best hosts.

More than 1 lowers the number of claims that several daemons lose to each
other, at the price of not always the best host.
""",
    ),
    cfg.BoolOpt(
        'shuffle_best_same_weighed_hosts',
        default=False,
        deprecated_opts=_old('shuffle_best_same_weighed_hosts'),
        help='Pick at random among hosts that share the best weight.',
    ),
    _multiplier('ram_weight_multiplier', 'free memory'),
    _multiplier('cpu_weight_multiplier', 'vCPUs left under the ratio'),
    _multiplier('disk_weight_multiplier', 'free disk'),
    _multiplier('io_ops_weight_multiplier', 'I/O operations', -1.0),
    _multiplier('pci_weight_multiplier', 'few free PCI devices'),
    _multiplier('soft_affinity_weight_multiplier', 'members of its group'),
    _multiplier(
        'soft_anti_affinity_weight_multiplier', 'no members of its group'
    ),
    _multiplier(
        'build_failure_weight_multiplier', 'no failed builds', 1000000.0
    ),
    _multiplier(
        'cross_cell_move_weight_multiplier', 'staying in the cell', 1000000.0
    ),
    _multiplier('hypervisor_version_weight_multiplier', 'newer hypervisors'),
    _multiplier('num_instances_weight_multiplier', 'instances', 0.0),
    _multiplier(
        'image_props_weight_multiplier', 'instances of like images', 0.0
    ),
    cfg.ListOpt(
        'image_props_weight_setting',
        default=[],
        help="""
Image properties that ImagePropertiesWeigher counts, as ``name=ratio``.

Empty: all of them, each once.
""",
    ),
    cfg.IntOpt(
        'max_io_ops_per_host',
        default=8,
        min=0,
        deprecated_opts=_old('max_io_ops_per_host'),
        help='IoOpsFilter passes hosts with fewer I/O operations than this.',
    ),
    cfg.IntOpt(
        'max_instances_per_host',
        default=50,
        min=1,
        deprecated_opts=_old('max_instances_per_host'),
        help='NumInstancesFilter passes hosts with fewer instances than this.',
    ),
    cfg.ListOpt(
        'isolated_images',
        default=[],
        deprecated_opts=_old('isolated_images'),
        help='Image ids that IsolatedHostsFilter keeps to isolated hosts.',
    ),
    cfg.ListOpt(
        'isolated_hosts',
        default=[],
        deprecated_opts=_old('isolated_hosts'),
        help='Hosts that IsolatedHostsFilter keeps for isolated images.',
    ),
    cfg.BoolOpt(
        'restrict_isolated_hosts_to_isolated_images',
        default=True,
        deprecated_opts=_old('restrict_isolated_hosts_to_isolated_images'),
        help='Keep other images off isolated hosts.',
    ),
    cfg.StrOpt(
        'image_properties_default_architecture',
        default=None,
        help='The architecture of images that do not state one.',
    ),
    cfg.StrOpt(
        'aggregate_image_properties_isolation_namespace',
        default=None,
        deprecated_opts=_old('aggregate_image_properties_isolation_namespace'),
        help='AggregateImagePropertiesIsolation looks at keys of this alone.',
    ),
    cfg.StrOpt(
        'aggregate_image_properties_isolation_separator',
        default='.',
        deprecated_opts=_old('aggregate_image_properties_isolation_separator'),
        help='What stands between that namespace and the rest of a key.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
