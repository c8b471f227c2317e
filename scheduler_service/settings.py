"""What the operator set, as plain values for filters, weighers and pipeline.

Below floor 4 nothing reads options; it is handed one of these instead.
Defaults are the documented ones of the seed era for the three ratios, and
the field's current ones for everything else.
"""

from __future__ import annotations

import dataclasses

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
    default_availability_zone: str = 'nova'
    host_subset_size: int = 1
    shuffle_best_same_weighed_hosts: bool = False
    max_attempts: int = 3
    ram_weight_multiplier: float = 1.0
    cpu_weight_multiplier: float = 1.0
    disk_weight_multiplier: float = 1.0
    scheduler_filters: tuple[str, ...] = ('default_pool',)
    default_pool_id: str = DEFAULT_POOL_ID

    def default_ratio(self, resource_class: str) -> float:
        """Return the configured ratio of a class where the host has none."""
        return {
            'VCPU': self.cpu_allocation_ratio,
            'MEMORY_MB': self.ram_allocation_ratio,
            'DISK_GB': self.disk_allocation_ratio,
        }.get(resource_class, 1.0)
