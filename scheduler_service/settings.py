"""What the operator set, as plain values for plug-ins, pipeline and engine.

Defaults are those of the options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

DEFAULT_POOL_ID = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Values that plug-ins and the pipeline read.

    Ratios are factors on totals; multipliers are plain factors; ``*_hosts``
    and ``*_images`` hold names and ids as the operator wrote them.
    """

    cpu_allocation_ratio: float = 16.0
    ram_allocation_ratio: float = 1.5
    disk_allocation_ratio: float = 1.0
    allow_self_overcommit: bool = True
    plugin_options: Mapping[str, str] = dataclasses.field(
        default_factory=dict, hash=False
    )
    default_availability_zone: str = 'nova'
    host_subset_size: int = 1
    shuffle_best_same_weighed_hosts: bool = False
    max_attempts: int = 3
    ram_weight_multiplier: float = 1.0
    cpu_weight_multiplier: float = 1.0
    disk_weight_multiplier: float = 1.0
    io_ops_weight_multiplier: float = -1.0
    pci_weight_multiplier: float = 1.0
    soft_affinity_weight_multiplier: float = 1.0
    soft_anti_affinity_weight_multiplier: float = 1.0
    build_failure_weight_multiplier: float = 1000000.0
    cross_cell_move_weight_multiplier: float = 1000000.0
    hypervisor_version_weight_multiplier: float = 1.0
    num_instances_weight_multiplier: float = 0.0
    host_order_weight_multiplier: float = 0.0
    resource_weight_multiplier: float = 1.0
    resource_weight_setting: tuple[str, ...] = ()
    image_props_weight_multiplier: float = 0.0
    image_props_weight_setting: tuple[str, ...] = ()
    metrics_weight_multiplier: float = 1.0
    metrics_weight_setting: tuple[str, ...] = ()
    metrics_required: bool = True
    metrics_weight_of_unavailable: float = -10000.0
    pci_aliases: tuple[str, ...] = ()
    max_io_ops_per_host: int = 8
    max_instances_per_host: int = 50
    isolated_images: tuple[str, ...] = ()
    isolated_hosts: tuple[str, ...] = ()
    restrict_isolated_hosts_to_isolated_images: bool = True
    image_properties_default_architecture: str | None = None
    aggregate_image_properties_isolation_namespace: str | None = None
    aggregate_image_properties_isolation_separator: str = '.'
    enable_isolated_aggregate_filtering: bool = False
    limit_tenants_to_placement_aggregate: bool = False
    placement_aggregate_required_for_tenants: bool = False
    query_placement_for_availability_zone: bool = False
    query_placement_for_image_type_support: bool = False
    image_metadata_prefilter: bool = False
    scheduler_filters: tuple[str, ...] = ('default_pool',)
    default_pool_id: str = DEFAULT_POOL_ID
    keep_pools_without_attributes: bool = False

    def default_ratio(self, resource_class: str) -> float:
        """Return the allocation ratio of hosts that state none, or 0.

        It is configured for vCPUs, memory and disk. Of any other class it is
        0: a host states 1.0 where it says nothing, and 0 means no capacity.
        """
        return {
            'VCPU': self.cpu_allocation_ratio,
            'MEMORY_MB': self.ram_allocation_ratio,
            'DISK_GB': self.disk_allocation_ratio,
        }.get(resource_class, 0.0)


@dataclasses.dataclass(slots=True)
class EngineOptions:
    """Options of the group ``[scheduler]``, for all parts of an engine.

    They share one object and read it each time, so that a reload changes it
    alone. Names are those of the options; what begins with ``history_`` is of
    the group ``[history]``. Times are in seconds, all other numbers are
    counts; what 0 means is said there.
    """

    batch_size: int = 64
    snapshot_max_age: float = 0.2
    decisions_kept: int = 100_000
    log_decisions: bool = True
    decisions_max_age: float = 0.0
    service_down_time: float = 60.0
    claim_timeout: float = 0.0
    outcome_retention: float = 86_400.0
    history_keep_days: float = 7.0
    history_keep_bytes: int = 2**31

    @property
    def keeps_history(self) -> bool:
        """Whether what the daemon sees and decides is recorded."""
        return self.history_keep_days > 0 and self.history_keep_bytes > 0

    def use(self, other: EngineOptions) -> None:
        """Take the values of other options, from now on."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(other, field.name))


def ratios(setting: tuple[str, ...]) -> list[tuple[str, float]]:
    """Return (name, ratio) of ``name=ratio`` entries.

    An entry without a name or a number is left out; names are taken as they
    are, blanks and all.
    """
    ratio_of: dict[str, float] = {}
    for entry in setting:
        name, sign, value = entry.partition('=')
        try:
            number = float(value)
        except ValueError:
            continue
        if sign and name:
            ratio_of[name] = number
    return list(ratio_of.items())
